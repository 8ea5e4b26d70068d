"""A real Slurm from nothing: two nodes of two processors each on this machine, without accounting, for one test run."""

import os
import pwd
import socket
import subprocess
import time

import pytest
from tracking_server import a_free_port

NODES = ("n1", "n2")
STARTS_WITHIN_S = 30.0
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=8
MinJobAge=10
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """Its daemons, which write to `folder`; `environment` says where commands find it."""

    def __init__(self, folder):
        self.folder, self.daemons = folder, {}
        host, user = socket.gethostname().partition(".")[0], pwd.getpwuid(os.getuid()).pw_name
        ports = [a_free_port() for _ in range(3)]
        self.config = folder / "slurm.conf"
        self.config.write_text(CONFIG.format(folder=folder, host=host, ports=ports, user=user))
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        self.environment = {"SLURM_CONF": str(self.config)}

    def start(self):
        """Bring all up; skips the test where they do not come."""
        names = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        files = [f"--{option}={self.folder}/munge.{name}" for option, name in names.items()]
        self._start("munged", "--foreground", "--force", *files)
        self._wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "-D", "-i")
        for node in NODES:
            self.start_node(node)
        self._wait_for(lambda: self.call("sinfo", "-h", "-o", "%T %D").strip() == "idle 2", "slurmd -N")

    def start_node(self, node):
        """Start the slurmd of a node, again perhaps."""
        self._start("slurmd", "-D", "-N", node, name=node)

    def _start(self, *command, name=None):
        name = name or command[0]
        how = {"stdin": subprocess.DEVNULL, "env": os.environ | self.environment, "start_new_session": True}
        with open(self.folder / f"{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen(command, stdout=out, stderr=out, **how)

    def _wait_for(self, happened, what):
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not happened():
            dead = [name for name, process in self.daemons.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                words = [(self.folder / f"{name}.out").read_text()[-300:] for name in dead]
                pytest.skip(f"needs a Slurm that starts here ({what}): {' '.join(words)}")
            time.sleep(0.1)

    def call(self, *command):
        """What a command of Slurm prints."""
        env = os.environ | self.environment
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env).stdout

    def jobs(self, state=None):
        """The ids of the jobs in the queue, such as 5_3."""
        states = [f"--states={state}"] if state else []
        return self.call("squeue", "-h", "-r", "-o", "%i", *states).split()

    def stop(self):
        """End all jobs and all daemons."""
        if jobs := self.jobs():
            self.call("scancel", "--full", "--signal=KILL", *jobs)
            self.call("scancel", *jobs)
            deadline = time.monotonic() + 15
            while self.jobs() and time.monotonic() < deadline:
                time.sleep(0.2)
        for name in reversed(self.daemons):
            process = self.daemons[name]
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def cluster(folder):
    """A generator for a fixture of tests marked `needs("slurm")`: a running Slurm, stopped at the end."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
