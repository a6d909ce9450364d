"""What users are given and rarely make: columns and samples, figures of a loader, and reports."""

from headrace.data.blobs import Blobs as Blobs
from headrace.data.formats.columns import Block as Block
from headrace.data.formats.columns import Field as Field
from headrace.data.formats.columns import Ragged as Ragged
from headrace.data.formats.columns import Schema as Schema
from headrace.data.gather import Padded as Padded
from headrace.faults.bad_sample import BadSample as BadSample
from headrace.faults.counts import Faults as Faults
from headrace.loader.reporting import Report as Report
from headrace.observe.diagnosis.finding import Diagnosis as Diagnosis
from headrace.observe.stats import LoaderStats as LoaderStats
from headrace.telemetry.recording import Recording as Recording
from headrace.telemetry.recording import Setting as Setting
