"""What a request body may say of its language."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from checkengine.engine_shim.engine.server_requests import ChatBody

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(("given", "code"), [("en", "en"), ("pt-BR", "pt"), (None, None)])
def test_the_language_of_a_request_may_have_a_region(given: str | None, code: str | None) -> None:
    assert ChatBody.model_validate({"model": "m", "messages": MESSAGES, "language": given}).language == code


@pytest.mark.parametrize("given", ["zz", "secret: my prompt text", ""])
def test_a_language_that_is_none_is_refused_with_one_sentence(given: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate({"model": "m", "messages": MESSAGES, "language": given})
    (error,) = caught.value.errors()
    assert error["loc"] == ("language",)
    assert "is no ISO 639-1 code, for example en or pt-BR; leave the parameter out" in error["msg"]
    assert "secret" not in error["msg"]
