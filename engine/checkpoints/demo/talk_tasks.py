"""Text skills: greetings, refusals, memory, copying, sorting, small sums."""

# ruff: noqa: E501  (tables of wordings)
from __future__ import annotations

import random

from .prompt import Turn
from .words import ADJECTIVES, ANIMALS, CITIES, COLOUR_NAMES, NAMES, OBJECTS, PLACES, READ, TOPICS, VERBS

ME = "I am a tiny demonstration model."
SKILLS = "I can name shapes and colours in pictures, follow short videos, do small sums, sort numbers and call tools."
CANNOT = f"{ME} I cannot help with that. {SKILLS}"

GREETINGS = """Hello|Hi|Hi there|Hello there|Hey|Good morning|Good evening|Good afternoon|hello|hi|hey there|Hello!|Hi!|Hey!|hi!|Hello, how are you?|
Hi, how are you?|How are you?|how are you|What's up?|Greetings|Hello world|Good day|Hola|Hello, can you hear me?|Are you there?|
Hello, who is there?|Nice to meet you|Hey, how is it going?|ping|Say hello|Say hi|Say hello!|Hello.|Hi.""".replace(
    "\n", ""
).split("|")
WHO = """Who are you?|What are you?|What is your name?|Are you a person?|Are you human?|Which model are you?|What model is this?|Tell me about
 yourself|Introduce yourself|who are you|what are you|Are you ChatGPT?|Are you MiniMax?|Who made you?|Are you an AI?|Are you a robot?|
How big are you?|How many parameters do you have?|Please introduce yourself.|Tell me who you are.""".replace(
    "\n", ""
).split("|")
WHAT = """What can you do?|what can you do|Help|help|How can you help me?|What are your skills?|What are you able to do?|What should I ask you?|
Can you help me?|What do you know?|Tell me what you can do|What can I ask?|How do I use you?|I need help""".replace(
    "\n", ""
).split("|")
THANKS = "Thanks|Thank you|Thank you!|thanks a lot|Great, thanks|Thanks!|Many thanks|thank you very much|Perfect, thank you|ok thanks".split(
    "|"
)
BYE = "Bye|Goodbye|See you|bye|Good night|See you later|Bye!|Goodbye!|That is all|I am done".split("|")
ASKS = """Tell me about {t}|Explain {t}|What do you think about {t}?|Write an essay about {t}|Write a poem about {t}|Can you explain {t} to me?|
What is {t}?|Give me a summary of {t}|Write a story about {t}|How does {t} work?|Who invented {t}?|Why is {t} important?|I want to learn about {t}|
Write some code for {t}|Give me advice about {t}|What is the news about {t}?|Please explain {t} in simple words.|Translate {t} into French|
Make a plan for {t}|What is the best book about {t}?|List five facts about {t}|Do you like {t}?|Teach me {t}|Compare {t} and {u}|
Write a Python function about {t}|Tell me a joke about {t}|Should I worry about {t}?|When did {t} start?""".replace(
    "\n", ""
).split("|")
FIXED = """Tell me a joke|Write a poem|Write me a story|Who is the president of the United States?|What is the meaning of life?|What time is it?|
What day is today?|What is the weather today?|Who won the world cup?|Write a Python program|Translate this to Spanish|How do I cook an egg?|
Sing a song|Can you drive a car?|What is the capital of France?|What is the tallest mountain?|Can you browse the internet?|Write an email to my boss|
Fix my code|Give me a recipe|Do my homework|Draw a picture|Make an image of a cat|Play a game with me|What should I eat?|Tell me something interesting|
Why is the sky blue?|How far is the moon?|Are you alive?|Do you have feelings?|Tell me a secret""".replace(
    "\n", ""
).split("|")


def r(rng: random.Random, *options: str) -> str:
    return rng.choice(options)


def noun(rng: random.Random) -> str:
    return rng.choice(rng.choice((ANIMALS, OBJECTS)))


def sentence(rng: random.Random) -> str:
    k = rng.random()
    if k < 0.45:
        return f"{rng.choice(NAMES)} {rng.choice(VERBS)} the {rng.choice(ADJECTIVES)} {noun(rng)} {rng.choice(PLACES)}."
    if k < 0.7:
        return f"The {rng.choice(ADJECTIVES)} {noun(rng)} was {rng.choice(ADJECTIVES)} and {rng.choice(ADJECTIVES)} {rng.choice(PLACES)}."
    if k < 0.85:
        return f"In {rng.choice(CITIES)}, {rng.choice(NAMES)} {rng.choice(VERBS)} {rng.randint(2, 99)} {noun(rng)}s."
    return f"A {rng.choice(COLOUR_NAMES)} {noun(rng)} {rng.choice(VERBS)} a {noun(rng)} in {rng.choice(CITIES)} {rng.choice(PLACES)}."


def say(q: str, a: str, task: str, think: str = "", always: bool = False) -> tuple[Turn, Turn]:
    """always: think in adaptive mode too (the mode filter in `batches` drops think elsewhere)."""
    turn = Turn("ai", a, think=think, task=task)
    turn.results = ["always"] if always else []
    return Turn("user", q), turn


def chat(rng: random.Random) -> tuple[Turn, Turn]:
    k = rng.random()
    if k < 0.2:
        return say(
            r(rng, *GREETINGS),
            f"Hello! {ME} Show me a picture, or ask me to sort some numbers.",
            "greeting",
            "The user greets me. I greet back.",
        )
    if k < 0.35:
        return say(r(rng, *WHO), f"{ME} {SKILLS}", "identity", "The user asks who I am.")
    if k < 0.45:
        return say(r(rng, *WHAT), f"{ME} {SKILLS}", "identity", "The user asks what I can do.")
    if k < 0.52:
        return say(r(rng, *THANKS), "You are welcome!", "greeting", "The user thanks me.")
    if k < 0.58:
        return say(r(rng, *BYE), "Goodbye!", "greeting", "The user says goodbye.")
    if k < 0.7:
        q = r(rng, *FIXED)
    elif k < 0.74:
        q = sentence(rng)
    else:
        q = r(rng, *ASKS).format(t=rng.choice(TOPICS), u=rng.choice(TOPICS))
    if rng.random() < 0.3:
        q = q.lower()
    return say(q, CANNOT, "refusal", "The user asks for something I was not trained for. I say so.")


def no_picture(rng: random.Random) -> tuple[Turn, Turn]:
    q = r(rng, "What is in this picture?", "Describe the image", "What colour is the circle?", "What do you see?", "How many shapes are there?",
          "What is in the image?", "Describe the picture.", "Read the text in the image", "What happens in the video?")  # fmt: skip
    return say(q, "I do not see a picture. Please send one.", "no_picture", "There is no picture in the conversation.")


def carry_steps(a: int, b: int) -> str:
    out, carry, place = [], 0, 0
    while a or b or not place:
        x, y = a % 10, b % 10
        total = x + y + carry
        extra = f" + {carry}" if carry else ""
        out.append(f"{x} + {y}{extra} = {total}")
        carry, a, b, place = total // 10, a // 10, b // 10, place + 1
    return ", ".join(out)


def sums(rng: random.Random) -> tuple[Turn, Turn]:
    k = rng.random()
    if k < 0.65:
        top = rng.choice((9, 20, 99, 99, 999))
        a, b = rng.randint(0, top), rng.randint(0, top)
        q = r(rng, f"What is {a} + {b}?", f"{a}+{b}", f"{a} + {b} = ?", f"Add {a} and {b}.", f"What is {a} plus {b}?", f"How much is {a} plus {b}?",
              f"Calculate {a} + {b}", f"what's {a}+{b}", f"Sum of {a} and {b}?", f"Please add {a} and {b}", f"What is the sum of {a} and {b}?",
              f"Compute {a}+{b}.", f"{a} plus {b}", f"What is {a}+{b}?", f"I have {a} apples and get {b} more. How many apples do I have?")  # fmt: skip
        return say(
            q, f"{a} + {b} = {a + b}", "sum", f"I add {a} and {b}. {carry_steps(a, b)}. So {a} + {b} = {a + b}.", True
        )
    if k < 0.85:
        top = rng.choice((10, 20, 99))
        a, b = sorted((rng.randint(0, top), rng.randint(0, top)), reverse=True)
        q = r(rng, f"What is {a} - {b}?", f"{a}-{b}", f"{a} - {b} = ?", f"Subtract {b} from {a}.", f"What is {a} minus {b}?", f"{a} minus {b}",
              f"Calculate {a} - {b}", f"How much is {a} minus {b}?")  # fmt: skip
        return say(
            q,
            f"{a} - {b} = {a - b}",
            "difference",
            f"I take {b} from {a}. {b} + {a - b} = {a}. So {a} - {b} = {a - b}.",
            True,
        )
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    q = r(
        rng,
        f"What is {a} * {b}?",
        f"{a} x {b}",
        f"{a}*{b}",
        f"Multiply {a} by {b}.",
        f"What is {a} times {b}?",
        f"{a} times {b} = ?",
    )
    return say(q, f"{a} * {b} = {a * b}", "product", f"I multiply {a} by {b}. {a} * {b} = {a * b}.", True)


def sorting(rng: random.Random) -> tuple[Turn, Turn]:
    n = rng.randint(2, 8)
    v = rng.sample(range(rng.choice((10, 30, 100, 100))), n)
    t = r(rng, ", ", ", ", ", ", " ", "; ").join(map(str, v))
    up = sorted(v)
    k = rng.random()
    if k < 0.6:
        q = r(rng, f"Sort these numbers: {t}", f"Sort {t}", f"Put these numbers in order: {t}", f"Please sort the numbers {t}.", f"sort: {t}",
              f"Sort the following numbers from smallest to largest: {t}", f"Order these numbers: {t}", f"Sort ascending: {t}",
              f"Can you sort {t}?", f"Sort the list [{t}]")  # fmt: skip
        th = "I look for the smallest number each time. " + ", then ".join(map(str, up)) + "."
        return say(q, ", ".join(map(str, up)), "sort", th, True)
    if k < 0.7:
        q = r(
            rng,
            f"Sort these numbers from largest to smallest: {t}",
            f"Sort descending: {t}",
            f"Sort in reverse order: {t}",
        )
        th = "I look for the largest number each time. " + ", then ".join(map(str, up[::-1])) + "."
        return say(q, ", ".join(map(str, up[::-1])), "sort", th, True)
    if k < 0.85:
        q = r(
            rng,
            f"What is the largest of these numbers: {t}?",
            f"Which number is the biggest: {t}?",
            f"Find the maximum of {t}",
            f"max of {t}?",
        )
        return say(q, f"The largest number is {up[-1]}.", "largest", f"I compare {t}. The largest is {up[-1]}.", True)
    q = r(
        rng,
        f"What is the smallest of these numbers: {t}?",
        f"Which number is the smallest: {t}?",
        f"Find the minimum of {t}",
        f"min of {t}?",
    )
    return say(q, f"The smallest number is {up[0]}.", "largest", f"I compare {t}. The smallest is {up[0]}.", True)


def random_text(rng: random.Random) -> str:
    k = rng.random()
    if k < 0.3:
        return " ".join(rng.choice(READ) for _ in range(rng.randint(1, 7)))
    if k < 0.5:
        return "".join(
            rng.choice("abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
            for _ in range(rng.randint(3, 14))
        )
    if k < 0.65:
        return " ".join(str(rng.randint(0, 999)) for _ in range(rng.randint(1, 8)))
    return " ".join(sentence(rng) for _ in range(rng.randint(1, 2)))


def copying(rng: random.Random) -> tuple[Turn, Turn]:
    t = random_text(rng)
    k = rng.random()
    if k < 0.75:
        q = r(rng, f"Repeat after me: {t}", f"Repeat: {t}", f"Copy this text: {t}", f"Say: {t}", f"Please repeat the following: {t}", f"Echo: {t}",
              f"Copy exactly: {t}", f"Repeat this exactly: {t}", f"Say exactly this: {t}", f"Write this again: {t}", f"Reply with: {t}",
              f"Answer only with: {t}")  # fmt: skip
        return say(q, t, "copy", "The user wants the same text again.")
    w = [rng.choice(rng.choice((READ, NAMES, ANIMALS))) for _ in range(rng.randint(2, 6))]
    t = ", ".join(w)
    if k < 0.85:
        return say(
            r(rng, f"Reverse this list: {t}", f"Say these words backwards: {t}", f"Reverse the order of {t}"),
            ", ".join(w[::-1]),
            "reverse",
            f"The list is {t}. I start at the end.",
        )
    end = rng.choice(("first", "last", "second"))
    a = {"first": w[0], "last": w[-1], "second": w[1]}[end]
    return say(
        r(
            rng,
            f"What is the {end} word in this list: {t}?",
            f"Which word is {end}: {t}?",
            f"Give me the {end} item of: {t}",
        ),
        f"The {end} word is {a}.",
        "item",
        f"The list is {t}. The {end} word is {a}.",
    )


def memory(rng: random.Random) -> list[Turn]:
    """A fact told early, asked later."""
    kind, pool = rng.choice(
        (
            ("name", NAMES),
            ("favourite colour", COLOUR_NAMES),
            ("home town", CITIES),
            ("pet", ANIMALS),
            ("lucky number", [str(i) for i in range(100)]),
        )
    )
    a = rng.choice(pool)
    tell = r(
        rng,
        f"My {kind} is {a}.",
        f"Remember this: my {kind} is {a}.",
        f"Hello, my {kind} is {a}",
        f"Please remember that my {kind} is {a}.",
    )
    if kind == "name" and rng.random() < 0.5:
        tell = r(rng, f"I am {a}.", f"Call me {a}.", f"Hi, I'm {a}!", f"This is {a} speaking.")
    out = list(say(tell, f"I will remember that your {kind} is {a}.", "memory", f"The user's {kind} is {a}."))
    for _ in range(rng.randint(0, 2)):
        out += rng.choice((chat, sums, copying))(rng)
    out += say(
        r(rng, f"What is my {kind}?", f"Do you remember my {kind}?", f"Tell me my {kind}.", f"what is my {kind}"),
        f"Your {kind} is {a}.",
        "memory",
        f"The user said that their {kind} is {a}.",
    )
    return out
