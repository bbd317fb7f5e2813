"""The kinds by their names."""

from __future__ import annotations

from collections.abc import Mapping

from tutti.tasks.kinds.choice import Choice
from tutti.tasks.kinds.classes import Classes
from tutti.tasks.kinds.labels import Labels
from tutti.tasks.kinds.ordered import Ordered
from tutti.tasks.kinds.overlapping import Overlapping
from tutti.tasks.kinds.preference import Preference
from tutti.tasks.kinds.protocol import Kind
from tutti.tasks.kinds.span import Span
from tutti.tasks.kinds.tags import Tags
from tutti.tasks.kinds.text import Text
from tutti.tasks.kinds.tokens import Tokens
from tutti.tasks.kinds.values import Value, Values

_ALL: tuple[Kind, ...] = (
    Classes(),
    Ordered(),
    Choice(),
    Labels(),
    Value(),
    Values(),
    Preference(),
    Text(),
    Tokens(),
    Overlapping(),
    Span(),
    Tags(),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}
