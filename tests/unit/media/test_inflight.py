"""The memory account of bodies: never above its limit, first come first served, nothing lost on cancellation."""

from __future__ import annotations

import asyncio
import random

from gateway.media.inflight import FREE_BYTES, BytesInFlight

MIB = 1 << 20


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_small_bodies_never_wait() -> None:
    account = BytesInFlight(MIB)
    await account.take(MIB)
    small = account.lease()
    await small.grow(FREE_BYTES, 64 * MIB)
    small.release()
    assert account.used == MIB


async def test_the_next_in_line_waits_for_room_and_is_not_overtaken() -> None:
    account = BytesInFlight(10 * MIB)
    first, big, late = account.lease(), account.lease(), account.lease()
    await first.grow(6 * MIB, 6 * MIB)
    waiting = asyncio.create_task(big.grow(MIB, 8 * MIB))
    await settle()
    overtaking = asyncio.create_task(late.grow(MIB, MIB))
    await settle()
    assert not waiting.done() and not overtaking.done()
    first.release()
    await asyncio.gather(waiting, overtaking)
    assert account.used == 9 * MIB
    big.release()
    big.release()
    late.release()
    assert account.used == 0


async def test_a_body_above_the_whole_account_goes_alone() -> None:
    account = BytesInFlight(MIB)
    lease = account.lease()
    await lease.grow(5 * MIB, 5 * MIB)
    lease.release()
    assert account.used == 0


async def test_leaving_the_queue_lets_the_others_pass() -> None:
    account = BytesInFlight(10 * MIB)
    holder, leaver, next_one = account.lease(), account.lease(), account.lease()
    await holder.grow(8 * MIB, 8 * MIB)
    leaving = asyncio.create_task(leaver.grow(9 * MIB, 9 * MIB))
    await settle()
    following = asyncio.create_task(next_one.grow(2 * MIB, 2 * MIB))
    await settle()
    leaving.cancel()
    await following
    assert account.used == 10 * MIB


async def test_a_place_granted_to_somebody_just_cancelled_comes_back() -> None:
    account = BytesInFlight(10 * MIB)
    holder, unlucky = account.lease(), account.lease()
    await holder.grow(8 * MIB, 8 * MIB)
    waiting = asyncio.create_task(unlucky.grow(4 * MIB, 4 * MIB))
    await settle()
    holder.release()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert account.used == 0


async def test_any_mix_of_bodies_stays_within_the_limit_and_ends_at_zero() -> None:
    random.seed(7)
    account = BytesInFlight(16 * MIB)
    highest = 0

    async def body() -> None:
        nonlocal highest
        lease = account.lease()
        try:
            for size in sorted(random.sample(range(1, 8 * MIB), 3)):
                await lease.grow(size, 8 * MIB)
                highest = max(highest, account.used)
                await asyncio.sleep(0)
        finally:
            lease.release()

    tasks = [asyncio.create_task(body()) for _ in range(60)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert 0 < highest <= 16 * MIB and account.used == 0
