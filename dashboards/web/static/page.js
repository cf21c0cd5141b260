"use strict";
// Everything works without this file; it keeps pages fresh, remembers the theme and selects rows.

const DELAY = 400; // milliseconds: many changes at once are one refresh

function rememberTheme() {
  const button = document.getElementById("theme");
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    const secure = location.protocol === "https:" ? ";secure" : "";
    document.cookie = `checkengine_theme=${root.dataset.theme};path=/;max-age=31536000;samesite=lax${secure}`;
  });
}

function selectAll() {
  for (const box of document.querySelectorAll("[data-selects]")) {
    box.hidden = false;
    box.addEventListener("change", () => {
      for (const each of document.querySelectorAll(`input[name="${box.dataset.selects}"]`)) each.checked = box.checked;
    });
  }
}

function inUse(region) {
  return region.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
    || region.querySelector("input[type=checkbox]:checked") !== null;
}

function openDetails(region) {
  return [...region.querySelectorAll("details[id][open]")].map((each) => each.id);
}

function replaceRegion(region, fresh) {
  const focused = region.contains(document.activeElement) ? document.activeElement.id : "";
  const opened = openDetails(region);
  const news = withoutTimes(region) !== withoutTimes(fresh);
  region.replaceWith(fresh);
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  if (focused) document.getElementById(focused)?.focus();
  if (news) fresh.classList.add("fresh");
}

function withoutTimes(region) {
  // Ages pass by themselves: only what happened may draw an eye.
  const copy = region.cloneNode(true);
  for (const each of copy.querySelectorAll("time, svg, progress")) each.remove();
  return copy.textContent;
}

// A parsed document runs no script, and the content security policy forbids whatever it would bring.
const policy = window.trustedTypes?.createPolicy("checkengine", { createHTML: (html) => html });

function parsedPage(text) {
  return new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { "x-live": "1" }, redirect: "manual" });
  if (!answer.ok) return;
  const page = parsedPage(await answer.text());
  let changed = 0;
  for (const region of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(region.id);
    if (!fresh || inUse(region) || fresh.isEqualNode(region)) continue;
    replaceRegion(region, document.adoptNode(fresh));
    changed += 1;
  }
  if (page.title && page.title !== document.title) {
    document.title = page.title;
    if (changed) document.getElementById("announce").textContent = page.title;
  }
}

function stayFresh() {
  const address = document.body.dataset.events;
  if (!address || !document.querySelector("[data-live]")) return;
  let stream = null;
  let waiting = null;
  const soon = () => { waiting ??= setTimeout(() => { waiting = null; refresh().catch(() => {}); }, DELAY); };
  const follow = () => {
    // A browser opens six connections to one server: hidden tabs must not hold them.
    if (document.hidden) { stream?.close(); stream = null; return; }
    if (stream) return;
    let version = null;
    stream = new EventSource(address);
    stream.addEventListener("changed", (event) => {
      if (version !== null && version !== event.data) soon();
      version = event.data;
    });
  };
  document.addEventListener("visibilitychange", () => { follow(); if (!document.hidden) soon(); });
  follow();
}

rememberTheme();
selectAll();
stayFresh();
