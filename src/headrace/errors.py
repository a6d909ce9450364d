"""The errors that headrace raises, all of them a `HeadraceError`: one class per thing that a user must do."""

from headrace.core.errors import (
    ClusterError as ClusterError,
)
from headrace.core.errors import (
    DatasetError as DatasetError,
)
from headrace.core.errors import (
    DatasetNotFoundError as DatasetNotFoundError,
)
from headrace.core.errors import (
    FormatError as FormatError,
)
from headrace.core.errors import (
    HeadraceError as HeadraceError,
)
from headrace.core.errors import (
    MachineError as MachineError,
)
from headrace.core.errors import (
    MissingExtraError as MissingExtraError,
)
from headrace.core.errors import (
    ObjectChangedError as ObjectChangedError,
)
from headrace.core.errors import (
    ObjectNotFoundError as ObjectNotFoundError,
)
from headrace.core.errors import (
    RanksDifferError as RanksDifferError,
)
from headrace.core.errors import (
    RecordsLostError as RecordsLostError,
)
from headrace.core.errors import (
    SampleError as SampleError,
)
from headrace.core.errors import (
    SampleTimeoutError as SampleTimeoutError,
)
from headrace.core.errors import (
    StaleCacheError as StaleCacheError,
)
from headrace.core.errors import (
    StateError as StateError,
)
from headrace.core.errors import (
    StorageError as StorageError,
)
from headrace.core.errors import (
    TooManyBadSamplesError as TooManyBadSamplesError,
)
from headrace.core.errors import (
    TransportError as TransportError,
)
from headrace.core.errors import (
    UsageError as UsageError,
)
from headrace.core.errors import (
    WorkerDiedError as WorkerDiedError,
)
