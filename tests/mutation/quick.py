"""A pytest plugin: a test that fails by hypothesis looks for no simpler case."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile("quick", phases=(Phase.explicit, Phase.generate))
settings.load_profile("quick")
