"""A real Slurm of several virtual nodes on this machine, in a temporary folder: munged, slurmctld and a slurmd per node as
children of this process. Runs as root or as an ordinary user, leaves nothing behind, and never meets another Slurm: every
port and socket is its own.
"""
import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
PR_SET_PDEATHSIG = 1
NODE = "CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN"


class CannotRun(Exception):
    """Why there can be no Slurm here."""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Slurm:
    def __init__(self, nodes=4):
        missing = [name for name in NEEDED if not shutil.which(name, path=PATH)]
        if missing:
            raise CannotRun(f"Slurm is not installed (no {', '.join(missing)}): scripts/setup.sh --tests")
        self.nodes, self.daemons = nodes, []
        self.folder = Path(tempfile.mkdtemp(prefix="athanor-slurm-"))
        self.folder.chmod(0o755)  # munge refuses a socket that not everybody can reach
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        self.environment.update(PATH=PATH, SLURM_CONF=str(self.folder / "slurm.conf"))
        try:
            self.begin()
        except BaseException:
            self.stop()
            raise

    def begin(self):
        (self.folder / "key").write_bytes(os.urandom(128))
        (self.folder / "key").chmod(0o600)
        for name in ("state", "log", *(f"{kind}.n{n}" for kind in ("spool", "tmp") for n in range(1, self.nodes + 1))):
            (self.folder / name).mkdir()
        host = socket.gethostname().split(".")[0]
        controller, *ports = free_ports(1 + self.nodes)
        nodes = "".join(f"NodeName=n{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {NODE}\n"
                        for n, port in enumerate(ports, 1))
        user = pwd.getpwuid(os.getuid()).pw_name
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            d=self.folder, host=host, user=user, controller=controller, nodes=nodes))
        options = [f"--{name}={self.folder}/munge.{name}" for name in ("socket", "log-file", "pid-file", "seed-file")]
        self.daemon("munged", "-F", "--force", f"--key-file={self.folder}/key", *options)
        self.wait_for("the socket of munged", lambda: (self.folder / "munge.socket").exists())
        self.daemon("slurmctld", "-D")
        for n in range(1, self.nodes + 1):
            self.daemon("slurmd", "-D", "-N", f"n{n}")
        self.wait_for(f"{self.nodes} idle nodes", lambda: self.run("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D",
                                                                   check=False).stdout.strip() == str(self.nodes))

    def daemon(self, *command):
        with (self.folder / "log" / f"{command[0]}.out").open("a") as log:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log,
                                                 stdin=subprocess.DEVNULL, preexec_fn=die_with_parent))

    def wait_for(self, what, ready, seconds=120):
        end = time.monotonic() + seconds
        while not ready():
            ended = [d.args[0] for d in self.daemons if d.poll() is not None]
            if ended or time.monotonic() > end:
                logs = "\n".join(p.read_text(errors="replace")[-1500:] for p in sorted((self.folder / "log").iterdir()))
                raise CannotRun(f"no {what}: {f'{ended} ended' if ended else f'waited {seconds} s'}\n{logs}")
            time.sleep(0.05)

    def run(self, *command, check=True, timeout=120, **named):
        return subprocess.run(command, env=dict(self.environment, **named.pop("env", {})), capture_output=True, text=True,
                              timeout=timeout, check=check, **named)

    def job(self, number):
        """The fields of `scontrol show job`, by name."""
        text = self.run("scontrol", "-o", "show", "job", str(number)).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def stop(self):
        """Jobs, daemons, and whatever they started: all of it has our SLURM_CONF in its environment."""
        with contextlib.suppress(Exception):
            self.run("scancel", "-u", pwd.getpwuid(os.getuid()).pw_name, "--signal=KILL", "--full", timeout=5)
        for daemon in reversed(self.daemons):
            daemon.kill()
            daemon.wait()
        for _ in range(3):
            for pid in self.left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def left(self):
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found


CONFIGURATION = """\
ClusterName=loop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={d}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool.%n
TmpFS={d}/tmp.%n
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd.%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd.%n.log
SlurmdParameters=config_overrides
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}PartitionName=low Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=100 OverSubscribe=EXCLUSIVE
PartitionName=high Nodes=ALL MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF OverSubscribe=EXCLUSIVE
"""
