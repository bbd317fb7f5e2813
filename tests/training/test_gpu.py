"""Forward passes do not wait for a GPU; a CPU stands in for it here."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from tutti.training.machine import one_device
from tutti.training.machine.gpu import without_asking_for_padding

GPU = torch.device("cuda")
PADDED = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The masks of which transformers asks whether they have padding."""
    masks = []
    plain = masking_utils._ignore_bidirectional_mask_sdpa

    def watched(mask, *args, **options):
        masks.append(mask)
        return plain(mask, *args, **options)

    monkeypatch.setattr(masking_utils, "_ignore_bidirectional_mask_sdpa", watched)
    return masks


@pytest.mark.parametrize(
    ("mask", "device", "asks"),
    [(PADDED, GPU, False), (torch.ones_like(PADDED), GPU, True), (PADDED, torch.device("cpu"), True)],
    ids=["padded", "without padding", "on a CPU"],
)
def test_only_a_padded_batch_on_a_gpu_is_not_asked_whether_it_has_padding(backbone, asked, mask, device, asks):
    encoder = AutoModel.from_pretrained(backbone).eval()
    inputs = {"input_ids": torch.randint(4, 60, mask.shape), "attention_mask": mask}
    with torch.no_grad():
        expected = encoder(**inputs).last_hidden_state
        asked.clear()
        with without_asking_for_padding(mask, device):
            states = encoder(**inputs).last_hidden_state
    assert len(asked) == asks
    torch.testing.assert_close(states, expected, rtol=0, atol=0)


def test_after_an_error_transformers_makes_its_masks_itself_again() -> None:
    own = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]  # in a process that has packed rows, not the one of transformers

    def fail() -> None:
        assert ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is not own
        raise MemoryError

    with pytest.raises(MemoryError), without_asking_for_padding(PADDED, GPU):
        fail()
    assert ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is own


def test_every_step_knows_from_its_mask_before_it_is_copied(tune, tmp_path, monkeypatch):
    masks = []

    def watched(mask, device):
        masks.append(mask)
        return without_asking_for_padding(mask, device)

    monkeypatch.setattr(one_device, "without_asking_for_padding", watched)
    _, (report,) = tune(tmp_path, num_train_epochs=1, logging_steps=1)
    assert len(masks) == len(report.steps) > 1
    assert {mask.device.type for mask in masks} == {"cpu"}
