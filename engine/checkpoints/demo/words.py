"""Word pools of the generators. Small on purpose: the model is tiny and should know these well."""

# ruff: noqa: E501  (tables of wordings)
from __future__ import annotations

COLOURS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((255, 0, 0), (220, 20, 20), (200, 0, 0), (230, 40, 30), (220, 20, 60)),
    "green": ((0, 128, 0), (0, 255, 0), (34, 139, 34), (50, 205, 50), (0, 190, 60), (0, 160, 0)),
    "blue": ((0, 0, 255), (30, 80, 230), (0, 0, 180), (65, 105, 225), (20, 60, 200), (30, 100, 255)),
    "yellow": ((255, 255, 0), (255, 235, 20), (250, 220, 30), (255, 215, 0)),
    "orange": ((255, 165, 0), (255, 140, 0), (250, 120, 20)),
    "purple": ((128, 0, 128), (150, 50, 200), (110, 20, 160), (148, 0, 211)),
    "pink": ((255, 192, 203), (255, 105, 180), (255, 150, 190)),
    "cyan": ((0, 255, 255), (0, 220, 230), (60, 225, 225)),
    "brown": ((139, 69, 19), (120, 70, 30), (150, 90, 40), (110, 60, 20)),
    "black": ((0, 0, 0), (20, 20, 20)),
    "white": ((255, 255, 255), (248, 248, 248)),
    "gray": ((128, 128, 128), (160, 160, 160), (105, 105, 105)),
}
COLOUR_NAMES = tuple(COLOURS)

# name -> (points, inner ratio or None for a convex polygon, base angle in degrees, width/height range, kind)
SHAPES: dict[str, tuple[int, float | None, float, tuple[float, float], int]] = {
    "circle": (40, None, 0, (0.94, 1.06), 0),
    "square": (4, None, 45, (0.94, 1.06), 0),
    "triangle": (3, None, -90, (0.8, 1.25), 0),
    "star": (5, 0.4, -90, (0.95, 1.05), 0),
    "rectangle": (4, None, 45, (1.45, 2.6), 0),
    "diamond": (4, None, 0, (0.65, 1.0), 0),
    "hexagon": (6, None, 0, (0.95, 1.05), 0),
    "cross": (4, None, 0, (0.95, 1.05), 1),
    "ellipse": (40, None, 0, (1.4, 2.3), 0),
}
SHAPE_NAMES = tuple(SHAPES)
PLURAL = {s: s + ("es" if s == "cross" else "s") for s in SHAPES}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")

READ = """cat dog sun sky red blue car bus map key cup hat box pen ink tea milk bread apple lemon fish bird tree leaf rose moon star
rain snow wind fire ice sea lake hill road city park door wall room desk lamp book page word note song drum bell ring gold iron wood
stone sand glass paper shop bank farm barn goat cow pig hen duck frog bear wolf lion tiger horse mouse open stop exit sale home hello
yes no up down left right north south east west one two three four five six seven eight nine ten hot cold new old big small fast slow
test demo view lens code data loop byte disk fan kite boat ship train plane taxi hotel music photo video menu help push pull""".split()

NAMES = """Ana Ben Carla David Elena Felix Grace Hugo Iris Jonas Karim Laura Marco Nina Oscar Paula Quentin Rosa Samir Tara Ulrich Vera
Walter Ximena Yusuf Zoe Alice Bob Carol Tom Sam Maria John Emma Liam Olivia Noah Mia Lucas Sofia""".split()
CITIES = """Paris London Madrid Rome Berlin Lisbon Vienna Prague Oslo Athens Dublin Cairo Delhi Tokyo Lima Quito Havana Boston Chicago
Toronto Sydney Nairobi Lagos Seoul Beijing Kyoto Geneva Zurich Munich Milan Turin Seville Porto Lyon Nice Brussels Warsaw Helsinki
Stockholm Istanbul""".split()
ANIMALS = "cat dog horse cow goat sheep duck hen fox wolf bear lion tiger mouse rabbit owl eagle frog turtle whale shark bee ant".split()
OBJECTS = """lamp table chair window garden bridge tower market river mountain letter wallet basket bottle mirror carpet ladder hammer
engine wheel camera guitar piano violin pencil ticket blanket jacket umbrella candle compass telescope lantern harbor library station
kitchen orchard tunnel castle anchor barrel bucket cabin dagger feather goblet helmet island jewel kettle""".split()
ADJECTIVES = """old new small large quiet bright dark green heavy light wooden broken empty full clean dusty narrow wide cold warm sweet
sour soft hard slow quick strange simple famous hidden gentle proud clever lazy brave calm eager""".split()
VERBS = """carried found painted watched opened closed moved repaired cleaned sold bought described followed visited remembered counted
lifted measured crossed ignored noticed borrowed returned collected""".split()
PLACES = """near the river|behind the house|in the garden|under the bridge|on the hill|by the sea|at the market|in the old town|next to the
station|above the harbor|inside the library|along the road|before sunrise|after lunch|during the storm|every morning|in the winter|with
great care|without a word|for a long time""".replace("\n", " ").split("|")
TOPICS = """the French Revolution|quantum physics|black holes|the stock market|how to cook pasta|the best football team|democracy|machine
learning|the capital of Australia|climate change|the meaning of life|Shakespeare|the history of Rome|my taxes|a good movie|politics|my health|
the president|love|music theory|chess openings|gardening|the weather on Mars|artificial intelligence|cooking rice|travel in Asia|a job
interview|dinosaurs|philosophy|the second world war|vaccines|bitcoin|a poem about autumn|photosynthesis|Einstein|Napoleon|the ocean|cars|
programming in Rust|SQL joins|a sorting algorithm|the solar system|electric cars|yoga|coffee|wine|religion|economics""".replace(
    "\n", " "
).split("|")
