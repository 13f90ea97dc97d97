"""Two hosts on this machine, as network namespaces, and a cable between them with delay, rate, loss and a place to cut it.

The cable is a process that carries Ethernet frames between a TAP device in each namespace: it works where the kernel has no
netem, loses the same frames in every run, and SIGSTOP cuts it. Needs root and /dev/net/tun.
"""
import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

CLONE_NEWNET, TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0002, 0x1000
PR_SET_PDEATHSIG = 1
ADDRESSES = ("10.77.0.1", "10.77.0.2")


class CannotRun(Exception):
    """Why there can be no such network here."""


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Network:
    def __init__(self, delay=0.002, loss=0.01, seed=1, rate=0, mtu=1500):
        """delay: seconds in each direction; rate: bits per second in each, 0 = as many as the cable can carry; mtu: bytes."""
        if os.getuid() != 0 or not os.path.exists("/dev/net/tun"):
            raise CannotRun("network namespaces need root and /dev/net/tun")
        self.processes = []
        try:
            self.hosts = [self.start("unshare", "-n", "sleep", "infinity") for _ in ADDRESSES]
            for host in self.hosts:
                self.wait_for(lambda host=host: os.readlink(f"/proc/{host.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
            self.cable = self.start(sys.executable, __file__, *(str(h.pid) for h in self.hosts), str(delay), str(loss), str(seed),
                                    str(rate))
            for n, address in enumerate(ADDRESSES):
                self.wait_for(lambda n=n: self.ip(n, "link", "show", "eth0").returncode == 0)
                for command in (("link", "set", "lo", "up"), ("address", "add", f"{address}/24", "dev", "eth0"),
                                ("link", "set", "eth0", "mtu", str(mtu)), ("link", "set", "eth0", "up")):
                    done = self.ip(n, *command)
                    if done.returncode != 0:
                        raise CannotRun(f"ip {' '.join(command)}: {done.stderr.strip()}")
        except BaseException:
            self.stop()
            raise

    def start(self, *command):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        self.processes.append(process)
        return process

    def wait_for(self, ready):
        end = time.monotonic() + 60
        while not ready():
            if time.monotonic() > end or any(p.poll() is not None for p in self.processes):
                raise CannotRun("namespaces or TAP devices are not permitted here")
            time.sleep(0.02)

    def inside(self, host):
        """The command prefix that runs a command on a host."""
        return ["nsenter", "-t", str(self.hosts[host].pid), "-n", "--"]

    def ip(self, host, *arguments):
        return subprocess.run([*self.inside(host), "ip", *arguments], capture_output=True, text=True)

    def cut(self):
        self.cable.send_signal(signal.SIGSTOP)

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def open_tap(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
    return tap


def carry(taps, delay, loss, rng, rate):
    other, under_way, count = {taps[0]: taps[1], taps[1]: taps[0]}, [], 0
    free_at = dict.fromkeys(taps, 0.0)  # when the last bit of what came from a host is on the cable
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for tap in select.select(taps, [], [], wait)[0]:
            frame = os.read(tap, 65536)
            if rng.random() >= loss:
                count += 1
                free_at[tap] = max(free_at[tap], time.monotonic()) + (len(frame) * 8 / rate if rate else 0)
                heapq.heappush(under_way, (free_at[tap] + delay, count, other[tap], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, tap, frame = heapq.heappop(under_way)
            try:
                os.write(tap, frame)
            except OSError:  # the device is not up yet, or full: a cable loses such frames
                pass


if __name__ == "__main__":
    carry([open_tap(pid) for pid in sys.argv[1:3]], float(sys.argv[3]), float(sys.argv[4]), random.Random(int(sys.argv[5])),
          float(sys.argv[6]))
