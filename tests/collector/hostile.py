"""A program that sends a collector what no rank would: HELLOs in the name of others, and what is none."""

HOSTILE = """
import os, sys, time
import msgpack, zmq
directory, run_id = sys.argv[1:]
context = zmq.Context()
def send(session, rank, body):
    socket = context.socket(zmq.DEALER)
    socket.connect(f"ipc://{directory}/ingest")
    socket.send_multipart([msgpack.packb([session, rank, 0, 1]), body])
def hello(session, rank=0, world=2, pid=os.getpid()):
    now = time.monotonic_ns()
    fields = [1, 1, run_id, session, rank, world, rank, 0, "h", pid, "cpu", "gloo", "hook", now, now, 1.0]
    send(session, rank, msgpack.packb(fields))
hello(1)  # as rank 0, which is another process
hello(2, pid=int(os.environ["RANK_PID"]))  # in its name
hello(3, pid=2**31)
hello(4, world=3)
hello(5, world=65_536, rank=65_535)
send(6, 0, b"\\xff")
print("sent", flush=True)
time.sleep(600)
"""
"""Arguments: DIRECTORY RUN_ID; RANK_PID, that of rank 0, is in its environment. It prints `sent`."""
