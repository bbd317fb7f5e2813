"""The kinds by their names."""

from __future__ import annotations

from collections.abc import Mapping

from tutti.tasks.kinds.classes import Classes
from tutti.tasks.kinds.labels import Labels
from tutti.tasks.kinds.ordered import Ordered
from tutti.tasks.kinds.protocol import Kind
from tutti.tasks.kinds.text import Text
from tutti.tasks.kinds.tokens import Tokens
from tutti.tasks.kinds.values import Value, Values

KINDS: Mapping[str, Kind] = {
    kind.name: kind for kind in (Classes(), Ordered(), Labels(), Value(), Values(), Text(), Tokens())
}
