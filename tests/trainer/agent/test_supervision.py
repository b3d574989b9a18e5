"""The agent as a process: what it passes on, what it asks, and with which code it ends."""

import dataclasses
import http.server
import json
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from testing import waiting
from testing.operator import local_jobs as jobs
from tfparallel_trainer.contract import agents, environment, exits

pytestmark = pytest.mark.usefixtures("processes")

BEGIN = """
import os, pathlib, signal, subprocess, sys, time
from tfparallel_trainer.agent import child, orders, supervision
agent = os.getpid()
"""
SUPERVISE = """
run = supervision.supervise(os.environ, lambda settings: None, 0.0)
attempt = os.environ["TFPARALLEL_ATTEMPT"]
def write(name, text=""):
    draft = pathlib.Path(f"{name}.draft")
    draft.write_text(str(text))
    draft.rename(name)
write(f"trainer-{attempt}", os.getpid())
"""
"""After this line, the program is the trainer, whose output files lie in the working directory."""

RUN_2 = agents.AgentResponse(
    instruction=agents.Instruction.RUN, run=agents.Run(attempt=2, replica_attempt=0)
)
WAIT = agents.AgentResponse(instruction=agents.Instruction.WAIT, seconds=0.05)
EXIT = agents.AgentResponse(instruction=agents.Instruction.EXIT)


@dataclasses.dataclass
class Endpoint:
    """Answers agents: each answer once, then the last one again and again."""

    url: str
    answers: list[agents.AgentResponse]
    status: int = 200
    questions: list[agents.RunEnd] = dataclasses.field(default_factory=list)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            served.questions.append(agents.RunEnd.model_validate_json(body))
            answer = served.answers[0] if len(served.answers) == 1 else served.answers.pop(0)
            content = answer.model_dump_json(by_alias=True).encode()
            self.send_response(served.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Endpoint(f"http://127.0.0.1:{server.server_port}/agents/p", [EXIT])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield served
        server.shutdown()
        thread.join()


@dataclasses.dataclass
class Agent:
    """An agent that runs in a folder."""

    folder: pathlib.Path
    process: subprocess.Popen[str]
    mark: str

    def wait_for(self, name: str) -> str:
        """Wait for a file that the trainer writes; return its text."""
        file = self.folder / name
        waiting.until(
            file.exists,
            name,
            in_vain=lambda: "" if self.process.poll() is None else self.end()[1],
        )
        return file.read_text()

    def end(self) -> tuple[int, str]:
        """Wait for the agent's end; return its exit code and its output."""
        output, _ = self.process.communicate(timeout=waiting.LIMIT_SECONDS)
        return self.process.returncode, output


@pytest.fixture
def start(tmp_path: pathlib.Path, endpoint: Endpoint) -> Iterator["Start"]:
    starting = Start(tmp_path, endpoint.url)
    yield starting
    for agent in starting.started:
        agent.process.kill()
        agent.process.communicate()


class Start:
    """Starts agents whose trainer is a few lines of Python."""

    def __init__(self, folder: pathlib.Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.started: list[Agent] = []

    def __call__(
        self, trainer: str, before: str = "", uri: str | None = None, **variables: str
    ) -> Agent:
        settings = {"epochs": 1, **({"checkpoint": {"uri": uri}} if uri else {})}
        job = {"name": "j", "strategy": "Mirrored", "trainer": settings}
        (self.folder / "job.json").write_text(json.dumps(job))
        mark = jobs.new_mark()
        all_variables = {
            environment.JOB_FILE: str(self.folder / "job.json"),
            environment.SOURCE_DIR: str(self.folder),
            environment.OUTPUT_DIR: str(self.folder / "output"),
            environment.FAILURE_FILE: str(self.folder / "failure"),
            environment.ATTEMPT: "1",
            environment.AGENT_URL: self.url,
            jobs.MARK: mark,
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", f"{BEGIN}{before}{SUPERVISE}{trainer}"],
            env=all_variables,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(Agent(self.folder, process, mark))
        return self.started[-1]


@pytest.mark.parametrize(
    ("trainer", "code", "asks"),
    [
        ("os._exit(0)", 0, False),
        ("os._exit(65)", 65, False),
        ("os._exit(77)", 77, False),
        ("os._exit(75)", 75, True),
        ("os._exit(3)", 3, True),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, True),
        ("os.abort()", 134, True),
    ],
)
def test_it_ends_with_the_trainers_code_and_asks_where_another_run_may_do_better(
    start: Start, endpoint: Endpoint, trainer: str, code: int, asks: bool
) -> None:
    assert start(trainer).end() == (code, "")
    expected = agents.RunEnd(run=agents.Run(attempt=1, replica_attempt=0), code=code)
    assert endpoint.questions == ([expected] if asks else [])


def test_the_next_run_is_forked_from_the_same_process(start: Start, endpoint: Endpoint) -> None:
    endpoint.answers = [WAIT, WAIT, RUN_2]
    agent = start(
        "assert os.getppid() == agent\n"
        "if attempt == '1':\n"
        "    pathlib.Path('failure').write_text('a peer was lost')\n"
        "    os._exit(75)\n"
        "assert pathlib.Path('failure').read_text() == ''\n"
    )
    assert agent.end() == (0, "")
    assert agent.wait_for("trainer-1") != agent.wait_for("trainer-2")
    assert [question.message for question in endpoint.questions] == ["a peer was lost"] * 3
    assert {question.run.attempt for question in endpoint.questions} == {1}


def test_runs_share_files_in_memory(start: Start, endpoint: Endpoint) -> None:
    endpoint.answers = [RUN_2]
    agent = start(
        "first, *others = run.memory_files\n"
        "if attempt == '1':\n"
        "    os.pwrite(first, b'state', 1 << 20)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "assert os.pread(first, 9, 1 << 20) == b'state'\n"
        "assert [os.fstat(other).st_size for other in others] == [0, 0, 0]\n"
        "assert not os.get_inheritable(first)\n"
        "os._exit(0)"
    )
    assert agent.end() == (0, "")
    assert [question.code for question in endpoint.questions] == [137]


def test_a_kernel_without_files_in_memory_runs_trainers(start: Start, endpoint: Endpoint) -> None:
    refuse = "def refuse(_):\n    raise OSError(38, 'Function not implemented')\n"
    agent = start(
        "assert run.memory_files == ()\nos._exit(0)", f"{refuse}os.memfd_create = refuse\n"
    )
    assert agent.end() == (0, "")


def test_each_run_draws_other_numbers(start: Start, endpoint: Endpoint) -> None:
    endpoint.answers = [RUN_2]
    draw = "import random, numpy\nwrite(f'drawn-{attempt}', (random.random(), numpy.random.rand()))"
    before = "import random, numpy\nrandom.random(), numpy.random.rand()\n"
    agent = start(f"{draw}\nos._exit(0 if attempt == '2' else 75)", before)
    assert agent.end() == (0, "")
    first, second = (agent.wait_for(f"drawn-{attempt}").split(",") for attempt in (1, 2))
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_asked_to_end_lets_the_trainer_save_and_asks_nothing(
    start: Start, endpoint: Endpoint, number: signal.Signals
) -> None:
    agent = start(
        "signal.signal(signal.SIGTERM, lambda *_: (write('saved'), os._exit(76)))\n"
        "write('ready')\ntime.sleep(600)"
    )
    agent.wait_for("ready")
    agent.process.send_signal(number)
    assert agent.end() == (76, "")
    assert agent.wait_for("saved") == ""
    assert endpoint.questions == []


def test_who_is_asked_to_end_while_it_waits_ends_with_the_trainers_code(
    start: Start, endpoint: Endpoint
) -> None:
    endpoint.answers = [WAIT]
    agent = start("os._exit(75)")
    waiting.until(lambda: len(endpoint.questions) > 1, "questions")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.end() == (75, "")


@pytest.mark.parametrize(
    ("trainer", "code"),
    [
        ("signal.signal(signal.SIGTERM, lambda *_: os._exit(76))", 76),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 137),
    ],
)
def test_an_interruption_ends_the_run_alone(
    start: Start, endpoint: Endpoint, trainer: str, code: int
) -> None:
    endpoint.answers = [RUN_2]
    agent = start(
        f"if attempt == '2':\n    os._exit(0)\n{trainer}\nwrite('ready')\ntime.sleep(600)",
        TFPARALLEL_GRACE_SECONDS="1",
    )
    agent.wait_for("ready")
    agent.process.send_signal(signal.SIGUSR1)
    assert agent.end() == (0, "")
    [question] = endpoint.questions
    assert (question.code, question.interrupted) == (code, True)


def test_an_interruption_that_comes_late_is_acknowledged_and_ends_no_run(
    start: Start, endpoint: Endpoint
) -> None:
    endpoint.answers = [WAIT]
    agent = start("os._exit(0 if attempt == '2' else 75)")
    waiting.until(lambda: endpoint.questions, "a question")
    agent.process.send_signal(signal.SIGUSR1)
    waiting.until(lambda: endpoint.questions[-1].interrupted, "the acknowledgement")
    endpoint.answers = [RUN_2]
    assert agent.end() == (0, "")


def test_what_the_trainer_started_ends_before_the_next_run(
    start: Start, endpoint: Endpoint
) -> None:
    endpoint.answers = [WAIT]
    agent = start(
        "command = 'sleep 600 & setsid sleep 600 & sleep 600'\n"
        "subprocess.Popen(['setsid', 'sh', '-c', command])\nos._exit(75)"
    )
    waiting.until(lambda: endpoint.questions, "a question")
    assert jobs.processes(agent.mark) == [agent.process.pid]


def test_where_no_process_can_be_forked_it_trains_itself(start: Start, endpoint: Endpoint) -> None:
    no_room = "def refuse():\n    raise OSError(11, 'Resource temporarily unavailable')\n"
    agent = start("assert os.getpid() == agent\nos._exit(75)", f"{no_room}os.fork = refuse\n")
    sentence = "warning: no process can be forked (Resource temporarily unavailable), so this one"
    assert agent.end() == (75, f"[worker-0] {sentence} trains\n")
    assert endpoint.questions == []


def test_who_gets_no_answer_ends_after_a_while(start: Start, endpoint: Endpoint) -> None:
    agent = start("os._exit(75)", f"{_impatient(1.5)}", TFPARALLEL_AGENT_URL="http://127.0.0.1:1/")
    code, output = agent.end()
    assert code == exits.Exit.PEER_LOST
    assert "nobody has answered for 2 s" in output
    assert "Connection refused" in output


@pytest.mark.parametrize(("status", "refuses"), [(403, True), (503, False)])
def test_a_refusal_ends_the_container_at_once(
    start: Start, endpoint: Endpoint, status: int, refuses: bool
) -> None:
    endpoint.status = status
    code, output = start("os._exit(75)", _impatient(0.5)).end()
    assert code == exits.Exit.PEER_LOST
    assert ("no other run begins in this container" in output) == refuses
    assert ("nobody has answered" in output) != refuses
    assert (len(endpoint.questions) == 1) == refuses


def test_a_job_that_cannot_train_gets_no_agent(start: Start, endpoint: Endpoint) -> None:
    agent = start("assert os.getpid() == agent\nos._exit(78)", TFPARALLEL_JOB_FILE="/none")
    assert agent.end() == (78, "")
    assert endpoint.questions == []


def test_it_leaves_a_bucket_to_the_trainer(start: Start, endpoint: Endpoint) -> None:
    """A client of a bucket starts threads, which a fork loses."""
    agent = start(
        "assert os.getpid() != agent\nassert not opened\nos._exit(0)",
        "from tfparallel_trainer.storage import connection\n"
        "opened, connection._store = [], lambda *address: opened.append(address)\n",
        uri="s3://bucket/runs",
    )
    assert agent.end() == (0, "")
    assert endpoint.questions == []


def test_an_import_that_fails_is_the_trainers_to_report(start: Start, endpoint: Endpoint) -> None:
    fail = "def preload(settings):\n    raise ImportError('no TensorFlow')\n"
    replaced = (
        "supervise = supervision.supervise\n"
        "supervision.supervise = lambda env, _, started: supervise(env, preload, started)\n"
    )
    agent = start("assert os.getpid() == agent\nos._exit(70)", fail + replaced)
    assert agent.end() == (70, "")
    assert endpoint.questions == []


def _impatient(seconds: float) -> str:
    return f"orders.PATIENCE_SECONDS = {seconds}\n"
