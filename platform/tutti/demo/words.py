"""The vocabulary of the demo's generated tasks, most frequent words first."""

from __future__ import annotations


def _words(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(text.split(separator))


FEELINGS: dict[str, tuple[str, ...]] = {
    "sadness": _words(
        "sad unhappy heartbroken lonely down miserable gloomy tearful blue hopeless crushed sorrowful empty hurt "
        "downcast mournful wistful dejected forlorn despondent"
    ),
    "happiness": _words(
        "happy glad delighted cheerful joyful pleased thrilled content merry grateful elated overjoyed blissful sunny "
        "radiant jubilant upbeat gleeful carefree relieved"
    ),
    "like": _words(
        "fond charmed smitten enchanted devoted keen impressed captivated attached adoring hooked taken enamoured "
        "admiring touched fascinated loving tender won spellbound"
    ),
    "anger": _words(
        "angry furious mad annoyed irritated outraged livid cross enraged fuming bitter indignant hostile resentful "
        "incensed seething irate vexed exasperated heated"
    ),
    "fear": _words(
        "afraid scared frightened terrified nervous anxious worried panicked uneasy alarmed tense shaky fearful "
        "petrified timid dreading spooked jittery threatened wary"
    ),
    "surprise": _words(
        "surprised amazed astonished stunned shocked speechless startled puzzled dumbfounded baffled astounded dazed "
        "staggered bewildered flabbergasted incredulous unprepared thrown struck perplexed"
    ),
    "disgust": _words(
        "disgusted sickened repelled revolted nauseated appalled grossed queasy repulsed offended ill squeamish "
        "horrified contemptuous averse scornful sick disdainful loathing aghast"
    ),
}
CAUSES = _words(
    "the new phone,this film,my old boss,the late train,our neighbour,the long letter,the exam result,that loud noise,"
    "the empty house,his last message,the school party,this soup,the final match,her little dog,the big storm,"
    "the hotel room,my first salary,the traffic jam,your present,the night shift,the broken window,her wedding,"
    "the doctor's call,this old song,the crowded bus",
    ",",
)
OPENERS = _words("today|well,|to be honest,|last night|you know,|as always,|since monday|after work|oh,", "|")
CLOSERS = _words("that is all|what can i say|more tomorrow|anyway|good night|and so it goes|enough for now", "|")

TOPICS: dict[str, tuple[str, ...]] = {
    "100": _words("legend tale grandmother village ghost fable memory widow proverb inn stranger well diary miller"),
    "101": _words("museum poet painting opera calligraphy exhibition novel temple heritage sculpture scroll verse"),
    "102": _words("actress film singer drama album comedy premiere celebrity concert director trailer ballad sitcom"),
    "103": _words("striker coach match league goal tournament marathon keeper medal playoff sprinter derby referee"),
    "104": _words("bank loan tax interest budget currency insurance lender deficit credit inflation payment deposit"),
    "106": _words("flat landlord mortgage rent apartment tenant villa kitchen developer tower lease balcony bathroom"),
    "107": _words("car engine sedan hybrid brake motorway gearbox tyre truck driver wheel mileage coupe saloon"),
    "108": _words("school teacher exam pupil university lesson campus homework scholarship tuition graduate pencil"),
    "109": _words("phone chip software robot battery laptop satellite browser sensor network processor camera cloud"),
    "110": _words("army tank missile navy fighter soldier submarine drill radar general fleet barracks rifle convoy"),
    "112": _words(
        "beach hotel island tourist hike passport flight resort canyon guide backpack cruise cabin itinerary"
    ),
    "113": _words("minister treaty election embassy border summit president parliament sanctions refugee envoy coup"),
    "114": _words("shares index investor dividend broker rally stock trader fund futures listing portfolio yield bull"),
    "115": _words("wheat harvest farmer tractor orchard soil cattle irrigation seed crop pig pesticide greenhouse hay"),
    "116": _words("gamer console quest boss level guild avatar esports patch puzzle loot arcade joystick dungeon"),
}
HEADLINE_VERBS = _words("meets,faces,leaves,wins over,changes,waits for,returns to,surprises,follows,misses", ",")
HEADLINE_FILLERS = _words(
    "new big first old secret record young last quiet famous plan report season story price future crisis team deal "
    "question week city people year market"
)

PEOPLE: dict[str, str] = {  # a word and its hypernym, which it entails
    "man": "person", "woman": "person", "farmer": "worker", "cook": "worker", "boy": "child", "girl": "child",
    "nurse": "worker", "pupil": "child", "uncle": "person", "queen": "person", "baker": "worker", "toddler": "child",
}  # fmt: skip
THINGS: dict[str, str] = {
    "guitar": "instrument", "violin": "instrument", "piano": "instrument", "plum": "fruit", "pear": "fruit",
    "melon": "fruit", "horse": "animal", "goat": "animal", "dog": "animal", "hammer": "tool", "saw": "tool",
    "drill": "tool", "chair": "furniture", "table": "furniture", "bench": "furniture", "coat": "garment",
    "shirt": "garment", "scarf": "garment",
}  # fmt: skip
DEEDS: dict[str, tuple[str, str]] = {  # a word, a synonym, an antonym
    "buys": ("purchases", "sells"), "lifts": ("raises", "drops"), "finds": ("discovers", "loses"),
    "loves": ("adores", "hates"), "cleans": ("washes", "dirties"), "mends": ("repairs", "breaks"),
    "takes": ("grabs", "returns"), "hides": ("conceals", "shows"), "pulls": ("drags", "pushes"),
    "keeps": ("retains", "discards"),
}  # fmt: skip
PLACES: dict[str, str] = {  # a place, and one that contradicts it
    "in the kitchen": "on the beach", "at home": "at the office", "in the city": "in the forest",
    "indoors": "outdoors", "on the roof": "in the cellar", "at school": "at the market",
}  # fmt: skip
REASONS = _words(
    "for a friend,because it is cheap,every week,to please the family,for the first time,before lunch,with great care,"
    "to earn money,out of boredom,for a wedding",
    ",",
)
