"""The official openai package against `speech serve` with a tiny random model.

openai_client.py SPEECH MODEL: SPEECH is the program, MODEL a folder of tests/data/qwen3.
Exit code 77: the package is missing.
"""

import asyncio
import enum
import re
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

try:
    import openai
    import pydantic
except ImportError as error:
    print(f"SKIPPED: {error}; `make test` installs tests/requirements.txt from the package index")
    sys.exit(77)

KEY = "the key"


class Server:
    """`speech serve` on a free port."""

    def __init__(self, program, model, *flags):
        self.process = subprocess.Popen(
            [program, "serve", model, "--port", "0", "--threads", "2", "--name", "tiny",
             "--api-key", KEY, *flags],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.url = found[0]
                break
        else:
            raise RuntimeError("speech serve did not start")

    def client(self, kind=openai.OpenAI, key=KEY):
        return kind(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=120)

    def metric(self, name):
        request = urllib.request.Request(self.url + "/metrics",
                                         headers={"Authorization": "Bearer " + KEY})
        text = urllib.request.urlopen(request).read().decode()
        return float(re.search(rf"^{name} (.*)$", text, re.MULTILINE)[1])

    def wait(self, name, value):
        while self.metric(name) != value:
            time.sleep(0.01)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait()
        self.process.stderr.close()
        return code


class Kind(enum.Enum):
    LAMP = "lamp"
    DOOR = "door"


class Part(pydantic.BaseModel):
    kind: Kind
    on: bool


class Thing(pydantic.BaseModel):
    first: Part
    second: Part | None


class SetLight(pydantic.BaseModel):
    """Turns a light on or off."""
    on: bool
    room: Kind


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, MODEL)
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, text="Hello", **fields):
        fields = {"model": "tiny", "temperature": 0, "max_tokens": 24, **fields}
        return self.client.chat.completions.create(
            messages=[{"role": "user", "content": text}], **fields)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").owned_by, "local")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_chat(self):
        answer = self.ask(seed=1)
        self.assertEqual(answer.model, "tiny")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertGreater(usage.prompt_tokens, 5)
        self.assertEqual(self.ask(seed=1).choices, answer.choices)

    def test_the_seed_decides(self):
        def content(seed):
            return self.ask(temperature=1, top_p=1, seed=seed).choices[0].message

        self.assertEqual(content(5), content(5))
        self.assertNotEqual(content(5), content(6))

    def test_stream(self):
        whole = self.ask()
        stream = self.ask(stream=True, stream_options={"include_usage": True})
        content, finish, usage = "", None, None
        for chunk in stream:
            self.assertEqual(chunk.object, "chat.completion.chunk")
            for choice in chunk.choices:
                content += choice.delta.content or ""
                finish = choice.finish_reason or finish
            usage = chunk.usage or usage
        self.assertEqual(content, whole.choices[0].message.content)
        self.assertEqual(finish, whole.choices[0].finish_reason)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_log_probabilities(self):
        answer = self.ask(logprobs=True, top_logprobs=3)
        entries = answer.choices[0].logprobs.content
        self.assertEqual(len(entries), answer.usage.completion_tokens)
        for entry in entries:
            self.assertEqual(entry.logprob, entry.top_logprobs[0].logprob)
            self.assertLess(entry.logprob, 0)
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(bytes(entry.bytes).decode(errors="replace"), entry.token)

    def test_a_pydantic_model_is_the_form_of_the_answer(self):
        kinds = set()
        for seed in range(8):
            answer = self.client.chat.completions.parse(
                model="tiny", messages=[{"role": "user", "content": "A thing"}],
                response_format=Thing, temperature=1.5, seed=seed, max_tokens=300)
            thing = answer.choices[0].message.parsed
            self.assertIsInstance(thing, Thing)
            kinds.add(thing.first.kind)
        self.assertEqual(kinds, set(Kind))

    def test_tools(self):
        tools = [openai.pydantic_function_tool(SetLight)]
        messages = [{"role": "user", "content": "Light!"}]
        answer = self.client.chat.completions.parse(
            model="tiny", messages=messages, tools=tools, tool_choice="required", max_tokens=200)
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        (call,) = answer.choices[0].message.tool_calls
        self.assertEqual(call.function.name, "SetLight")
        self.assertIsInstance(call.function.parsed_arguments, SetLight)
        # The conversation goes on with the call and its result.
        messages.append({"role": "assistant", "content": None, "tool_calls": [
            {"id": call.id, "type": "function",
             "function": {"name": call.function.name, "arguments": call.function.arguments}}]})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "done"})
        after = self.client.chat.completions.create(
            model="tiny", messages=messages, tools=tools, max_tokens=5)
        self.assertGreater(after.usage.prompt_tokens, answer.usage.prompt_tokens)

    def test_streamed_tools(self):
        with self.client.chat.completions.stream(
                model="tiny", messages=[{"role": "user", "content": "Light!"}],
                tools=[openai.pydantic_function_tool(SetLight)],
                tool_choice={"type": "function", "function": {"name": "SetLight"}},
                temperature=1, seed=3, max_tokens=200) as stream:
            events = [event.type for event in stream]
            answer = stream.get_final_completion()
        self.assertIn("tool_calls.function.arguments.done", events)
        (call,) = answer.choices[0].message.tool_calls
        self.assertIsInstance(call.function.parsed_arguments, SetLight)

    def test_text_completions(self):
        ids = [577, 355, 261, 198]
        answer = self.client.completions.create(
            model="tiny", prompt=ids, echo=True, logprobs=2, max_tokens=3, temperature=0)
        choice = answer.choices[0]
        self.assertTrue(choice.text.startswith("<|im_start|>user\n"))
        self.assertEqual(len(choice.logprobs.tokens), len(ids) + 3)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertTrue(all(p < 0 for p in choice.logprobs.token_logprobs[1:]))
        both = self.client.completions.create(
            model="tiny", prompt=["One", "Two"], max_tokens=4, temperature=0)
        self.assertEqual([c.index for c in both.choices], [0, 1])
        alone = self.client.completions.create(
            model="tiny", prompt="Two", max_tokens=4, temperature=0)
        self.assertEqual(both.choices[1].text, alone.choices[0].text)

    def test_stop_and_grammar(self):
        answer = self.client.completions.create(
            model="tiny", prompt="x", max_tokens=50, stop=["and"],
            extra_body={"grammar": 'root ::= "this and that"'})
        self.assertEqual(answer.choices[0].text, "this ")
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.ask(temperature=-1)
        self.assertEqual(raised.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as raised:
            self.ask(response_format={"type": "json_schema", "json_schema": {
                "name": "x", "schema": {"type": "object", "patternProperties": {}}}})
        self.assertEqual(raised.exception.param, "response_format")
        self.assertIn("patternProperties", str(raised.exception))
        with self.assertRaises(openai.AuthenticationError):
            self.server.client(key="wrong").models.list()

    def test_a_stream_that_is_closed_is_cancelled(self):
        before = self.server.metric("speech_requests_cancelled_total")
        stream = self.ask(max_tokens=30000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.server.wait("speech_requests_cancelled_total", before + 1)

    def test_several_clients_at_once(self):
        async def one(client, text):
            answer = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": text}], temperature=1, seed=9,
                max_tokens=16)
            return answer.choices[0].message

        async def together(texts):
            async with self.server.client(openai.AsyncOpenAI) as client:
                return await asyncio.gather(*(one(client, text) for text in texts))

        texts = ["Question " + "x" * n for n in range(6)]
        alone = [asyncio.run(together([text]))[0] for text in texts]
        self.assertEqual(asyncio.run(together(texts)), alone)

    def test_a_full_queue(self):
        server = Server(PROGRAM, MODEL, "--sequences", "1", "--queue", "1")
        try:
            client = server.client()
            endless = {"model": "tiny", "prompt": "x", "max_tokens": 30000, "stream": True,
                       "extra_body": {"ignore_eos": True}}
            running = client.completions.create(**endless)
            server.wait("speech_requests_running", 1)
            waiting = client.with_options(timeout=600)
            # The stream of one that waits has not begun: it needs a thread of its own.
            loop = asyncio.new_event_loop()
            task = loop.run_in_executor(None, lambda: waiting.completions.create(**endless).close())
            server.wait("speech_requests_waiting", 1)
            with self.assertRaises(openai.RateLimitError):
                client.completions.create(model="tiny", prompt="x")
            running.close()
            loop.run_until_complete(task)
            loop.close()
        finally:
            server.stop()


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
