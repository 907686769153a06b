"""A stand-in for code that an agent wrote and nobody has read.

It looks around, does a little work and leaves a file behind: harmless here,
because the machine it runs on is its own and is gone a moment later.
"""

import json
import os
import sys
import time

system = os.uname()
print(f"Python  {sys.version.split()[0]}")
print(f"Kernel  {system.release}, its own and not the host's")
print(f"Host    {system.nodename}")
print(f"User    {'root' if os.geteuid() == 0 else os.geteuid()} of this machine, and of no other")

began = time.perf_counter()
limit = 50_000
sieve = bytearray([1]) * limit
sieve[:2] = b"\0\0"
for n in range(2, int(limit**0.5) + 1):
    if sieve[n]:
        sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))
primes = [n for n in range(limit) if sieve[n]]
gaps = [b - a for a, b in zip(primes, primes[1:])]
print(f"Work    {len(primes)} primes below {limit}, the widest gap is {max(gaps)}")

with open("result.json", "w", encoding="utf-8") as f:
    json.dump({"primes": len(primes), "largest": primes[-1], "widest_gap": max(gaps)}, f)
print(f"File    {os.path.abspath('result.json')}, {os.path.getsize('result.json')} bytes")
print(f"Took    {time.perf_counter() - began:.3f} s")
