"""The machines of a run: from flags, or from the variables of Slurm, Kubernetes and torchrun."""

import contextlib
import os
import signal
import socket
import threading

import pytest

from meshwise.errors import DoesNotFit, UserError
from meshwise.run.train import hosts
from meshwise.run.train.hosts import (
    Hosts,
    address_towards,
    comes_back,
    find,
    first_host,
    interface_of,
    network,
    rendezvous_options,
    wait_for_node_0,
)
from support.command import one_line

# srun's variables as `man srun` names them
STEP = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "77123",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}
WORKER = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1234"}


def test_without_flags_and_variables_the_run_is_on_this_machine() -> None:
    assert find({}, 8) == Hosts()
    assert rendezvous_options(Hosts(), 600) == ["--standalone"]
    assert network(Hosts(), {"NCCL_SOCKET_IFNAME": "eth7"}) == {"GLOO_SOCKET_IFNAME": "lo"}  # nobody else can reach it


def test_flags_take_precedence_over_slurm() -> None:
    assert find(STEP, 8, nodes=4, node_rank=2, rendezvous="localhost:4000") == Hosts(4, 2, "localhost:4000")
    assert find({}, 8, nodes=2, node_rank=0, rendezvous="localhost").rendezvous == "localhost:29500"


def test_srun_with_one_task_a_node_starts_the_workers_of_each() -> None:
    assert find(STEP, 16) == Hosts(2, 1, "gpu07:29623")  # 29500 + 77123 % 1000


def test_srun_with_one_task_a_device_is_the_worker() -> None:
    found = find(STEP | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}, 8)
    assert found.nodes == 1
    assert found.worker == {
        "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "gpu07", "MASTER_PORT": "29623",
    }  # fmt: skip


def test_a_shell_of_srun_on_one_node_is_this_machine() -> None:
    assert find({"SLURM_STEP_ID": "0", "SLURM_NNODES": "1", "SLURM_NTASKS": "1"}, 8) == Hosts()
    assert find({"SLURM_JOB_ID": "1", "SLURM_NNODES": "2"}, 8) == Hosts()  # a batch script, before any srun


def test_under_torchrun_it_is_the_worker() -> None:
    assert find(WORKER, 4).worker == WORKER


def test_one_pod_per_node_is_a_node() -> None:
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    assert find(pod, 16) == Hosts(2, 1, "job-master-0:23456")
    kubeflow = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-master-0", "PET_MASTER_PORT": "23456"}
    assert find(kubeflow, 16) == Hosts(2, 1, "job-master-0:23456")
    assert find({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "x"}, 8) == Hosts()


@pytest.mark.parametrize(
    ("environment", "typed", "words"),
    [
        ({}, {"nodes": 2}, "--nodes 2 needs --node-rank (0 to 1) and --rendezvous HOST:PORT"),
        ({}, {"nodes": 2, "node_rank": 2, "rendezvous": "a:1"}, "--node-rank 2: expected 0 to 1"),
        ({}, {"nodes": 2, "node_rank": 0, "rendezvous": "a:port"}, "--rendezvous 'a:port': expected HOST:PORT"),
        ({}, {"node_rank": 1}, "only apply with --nodes above 1"),
        # no such host, which .invalid is reserved for (RFC 2606), is told before the devices that 3 nodes cannot share
        ({}, {"nodes": 3, "node_rank": 0, "rendezvous": "foo.invalid"}, "this machine does not know the host 'foo.invalid'"),
        ({}, {"nodes": 3, "node_rank": 0, "rendezvous": "127.0.0.1:1"}, "for 8 devices, which 3 nodes cannot share evenly"),
        (WORKER, {}, "for 8 devices, but torchrun started 4 workers"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "6"}, {}, "srun started 6 tasks on 2 nodes, but the layout is for 8 devices"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, {}, "RANK='x' in the environment"),
    ],
)
def test_contradictory_variables_are_refused(environment: dict[str, str], typed: dict[str, int | str], words: str) -> None:
    with pytest.raises(UserError) as error:
        find(environment, 8, **typed)  # pyright: ignore[reportArgumentType]
    assert words in one_line(error.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[07-09,12],login", "gpu07"),
        ("gpu[3,5-6]", "gpu3"),
        ("a,b", "a"),
        ("rack1-node[001-128]-ib", "rack1-node001-ib"),
        ("", ""),
    ],
)
def test_the_first_host_of_slurm_s_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_workers_use_the_interface_that_leads_to_the_rendezvous() -> None:
    assert address_towards("127.0.0.1:29500") == "127.0.0.1"
    name = interface_of("127.0.0.1")
    assert name in [name for _, name in socket.if_nameindex()]
    here = Hosts(2, 1, "127.0.0.1:29500")
    found = network(here, {"NCCL_SOCKET_IFNAME": "ib0"})
    assert (found["GLOO_SOCKET_IFNAME"], found["MESHWISE_STORE"], found["MESHWISE_NODE_RANK"]) == (name, "127.0.0.1:29500", "1")
    assert "NCCL_SOCKET_IFNAME" not in found  # a user knows better
    words = rendezvous_options(here, 600)
    assert words[:2] == ["--nnodes", "2"]
    assert any(word.startswith("is_host=false,") for word in words)


def test_a_rendezvous_on_an_unknown_host_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be reached from this machine"):
        address_towards("no-such-host.invalid:1")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a rendezvous where no process listens, with no patience for it."""
    monkeypatch.setattr(hosts, "QUIET_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_a_node_reports_that_it_waits_for_node_0_and_times_out_in_one_line(nobody: str) -> None:
    said: list[str] = []
    with pytest.raises(DoesNotFit) as error:
        wait_for_node_0(Hosts(2, 1, nobody), said.append, patience=0.5)
    assert one_line(error.value) == f"node 0 did not answer at {nobody} within 0.5 s; is its command running?"
    assert said == [f"waiting for node 0 at {nobody}, up to 0.5 s"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_node_0(nobody: str, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(DoesNotFit, match=f"^{number.name} while waiting for node 0 at {nobody}: stopped, nothing was started$"):
        wait_for_node_0(Hosts(2, 1, nobody), lambda _: os.kill(os.getpid(), number))
    assert signal.getsignal(number) == before


def test_a_node_continues_as_soon_as_node_0_answers(nobody: str) -> None:
    listening: list[socket.socket] = []
    host, _, port = nobody.rpartition(":")
    node_0 = threading.Thread(target=lambda: listening.append(socket.create_server((host, int(port)))))
    wait_for_node_0(Hosts(2, 1, nobody), lambda _: node_0.start())
    listening.pop().close()
    wait_for_node_0(Hosts(), pytest.fail)  # one machine has nobody to wait for


def test_a_rendezvous_port_in_use_is_refused_on_node_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError) as error:
            wait_for_node_0(Hosts(2, 0, where), pytest.fail)
    assert "another program on this node uses port" in one_line(error.value)


def test_a_node_waits_for_a_link_that_was_cut_but_not_for_a_run_that_has_ended(nobody: str) -> None:
    said: list[str] = []
    assert not comes_back(Hosts(2, 1, nobody), said.append, patience=60)  # the machine answers that nothing listens there
    assert said == [f"node 0 at {nobody} could not be reached: waiting for the link, up to 60 s"]
    with socket.create_server(("127.0.0.1", 0), backlog=0) as node_0, contextlib.ExitStack() as others:
        where = f"127.0.0.1:{node_0.getsockname()[1]}"
        client = others.enter_context(socket.socket())
        client.connect(node_0.getsockname())  # its queue is full: as behind a link that is cut, nothing answers
        assert not comes_back(Hosts(2, 1, where), said.append, patience=0.5)
        threading.Timer(0.5, lambda: node_0.accept()[0].close()).start()
        assert comes_back(Hosts(2, 1, where), said.append, patience=60)
    assert said[-1] == f"node 0 at {where} answers again: starting the workers of this node"
