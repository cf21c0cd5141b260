"""checkengine in an engine of one's own: a toy that decodes with transformers' KV cache, one sequence after another.

python examples/own_engine.py MODEL_FOLDER "a prompt" "another prompt"
"""

import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import checkengine
from checkengine.engine_shim.adapter import StopOnly
from checkengine.guards import SequenceStart
from checkengine.replay.record import StepRecord


@dataclass
class Sequence:
    start: SequenceStart
    outputs: list[int] = field(default_factory=list)
    cache: DynamicCache = field(default_factory=DynamicCache)

    def inputs(self):
        """Tokens that are not in the cache yet."""
        return [*self.start.prompt_tokens, *self.outputs][self.cache.get_seq_length() :]


class ToyEngine(StopOnly):
    def __init__(self, model, prompts, stop_tokens=(), max_tokens=64):
        self.model, self.max_tokens, self.steps, self.ended = model, max_tokens, 0, []
        starts = [
            SequenceStart(number, f"request-{number}", tuple(prompt), stop_tokens=tuple(stop_tokens))
            for number, prompt in enumerate(prompts)
        ]
        self.running = [Sequence(start) for start in starts]
        self.results = {sequence.start.name: sequence.outputs for sequence in self.running}

    def record(self, sequence):
        """What decides this step's numbers; a batch has one entry a row."""
        tokens, known = sequence.inputs(), sequence.cache.get_seq_length()
        record = StepRecord(
            step=self.steps,
            time_ns=time.time_ns(),
            handles=np.array([sequence.start.handle], np.int32),
            query_lengths=np.array([len(tokens)], np.int32),
            starts=np.array([known], np.int32),
            samples=np.array([True]),
            token_ids=np.array(tokens, np.int32),
            begun=() if known else (sequence.start,),
            ended=tuple(self.ended),
        )
        self.steps, self.ended = self.steps + 1, []
        return record

    def forward(self, sequence):
        inputs = torch.tensor([sequence.inputs()])
        return self.model(inputs, past_key_values=sequence.cache, use_cache=True).logits[:, -1]

    def commit(self, sequence, token):
        sequence.outputs.append(token)
        if token in sequence.start.stop_tokens or len(sequence.outputs) == self.max_tokens:
            self.end(sequence)

    def end(self, sequence):
        self.running.remove(sequence)
        self.ended.append(sequence.start.handle)

    def apply(self, action):
        for sequence in [each for each in self.running if each.start.name == action.sequence]:
            del sequence.outputs[action.keep_tokens :]
            self.end(sequence)


@torch.no_grad()
def serve(engine, tokenizer, config=None):
    shim = checkengine.EngineShim(engine, tokenizer=tokenizer, config=config)
    while engine.running:
        sequence = engine.running[0]
        with shim.step(engine.record(sequence)) as step:
            logits = engine.forward(sequence)
            step.logits(logits)  # raw, before masks and penalties
            tokens = logits.argmax(-1).numpy().astype(np.int32)
            for action in step.tokens(tokens):
                engine.apply(action)
        if sequence in engine.running:
            engine.commit(sequence, int(tokens[0]))
    shim.close()
    return shim.assembly.book.incidents(time.time())


def main(folder, *questions):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    chats = [[{"role": "user", "content": question}] for question in questions]
    prompts = [
        tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=True)["input_ids"] for c in chats
    ]
    engine = ToyEngine(model, prompts, stop_tokens=[tokenizer.eos_token_id])
    incidents = serve(engine, tokenizer)
    for name, outputs in engine.results.items():
        print(f"{name}: {tokenizer.decode(outputs, skip_special_tokens=True)}")
    print(f"incidents: {[incident.kind for incident in incidents]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
