"""What an engine can do wrong, named by what the caller does next."""


class EngineError(Exception):
    """Base of all engine failures."""


class LoadError(EngineError):
    """The engine cannot be loaded. The message names the file, the problem and the remedy."""


class RunError(EngineError):
    """One batch failed; the session can be used again. The caller scores the batch with another engine."""


class OutOfMemory(RunError):
    """The device had no memory for the batch; a smaller batch may fit."""


class DeviceLost(EngineError):
    """The device context is unusable for the rest of the process (a sticky error). Sessions of this engine are gone."""
