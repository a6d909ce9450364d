"""Profiles of the AWS command line, in `~/.aws/credentials` and `~/.aws/config`: obstore does not read them.

Keys that stand in the files are read here. A profile whose keys must be fetched (single sign-on, a role, a process)
needs boto3, which also renews them.
"""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.errors import MissingExtraError, UsageError

NEEDS_BOTO3 = ("sso_start_url", "sso_session", "role_arn", "credential_process", "web_identity_token_file")
"""Entries of a profile whose keys must be fetched."""


@dataclass(frozen=True)
class ProfileCredentials:
    """What a profile gives; empty where it does not exist."""

    config: dict[str, str] = field(default_factory=dict, repr=False)
    """In obstore's words."""

    provider: Any = field(default=None, repr=False)
    """None, or obstore's provider over a session of boto3."""


def wanted_profile(profile: str | None, *, has_other_credentials: bool) -> str | None:
    """Returns the name of the profile to read, or None. profile: from the options; it wins over everything else."""
    if profile is not None:
        return profile

    if has_other_credentials:
        return None
    return os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"


def profile_credentials(profile: str, *, explicit: bool) -> ProfileCredentials:
    """Returns what a profile gives.

    explicit: whether somebody asked for this profile in the options; so does the variable AWS_PROFILE. Then a profile
    that does not exist is a `UsageError`, and otherwise nothing is returned. Raises `MissingExtraError` for a profile
    that needs boto3.
    """
    entries = read_profile(profile)
    if not entries:
        if explicit or os.environ.get("AWS_PROFILE") == profile:
            raise UsageError.about(
                "no such AWS profile",
                place=" and ".join(str(path) for path in profile_files()),
                found=f"no profile {profile!r}",
                expected="a section of that name",
                fix="correct profile= in options=, or the variable AWS_PROFILE",
            )
        return ProfileCredentials()

    config = {}
    if entries.get("region") and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        config["region"] = entries["region"]
    if entries.get("endpoint_url") and not (os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")):
        config["endpoint"] = entries["endpoint_url"]

    if entries.get("aws_access_key_id") and entries.get("aws_secret_access_key"):
        config["access_key_id"] = entries["aws_access_key_id"]
        config["secret_access_key"] = entries["aws_secret_access_key"]
        if entries.get("aws_session_token"):
            config["session_token"] = entries["aws_session_token"]
        return ProfileCredentials(config)

    if any(entries.get(name) for name in NEEDS_BOTO3):
        return ProfileCredentials(config, _boto3_provider(profile))
    return ProfileCredentials(config)


def profile_files() -> list[Path]:
    """Returns the files of profiles: credentials first."""
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    configuration = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    return [Path(credentials).expanduser(), Path(configuration).expanduser()]


def read_profile(profile: str) -> dict[str, str]:
    """Returns the entries of a profile from both files; those of the credentials file win. Empty where there are none.

    Raises `UsageError` for a file that is not in the form of profiles.
    """
    credentials, configuration = profile_files()
    section = f"profile {profile}"
    if profile == "default":
        section = "default"

    return {**_section(configuration, section), **_section(credentials, profile)}


def _section(path: Path, section: str) -> dict[str, str]:
    """Returns a section of a file; empty where there is none."""
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except OSError:
        # No file, or one of somebody else: the AWS command line passes over it too.
        return {}
    except (configparser.Error, UnicodeDecodeError) as error:
        # The error's own text quotes lines, which hold keys.
        found = f"it cannot be read as a configuration file ({type(error).__name__})"
        raise UsageError.about(
            "cannot read AWS profiles", place=path, found=found, expected="[profile] sections", fix="correct the file"
        ) from None

    if not parser.has_section(section):
        return {}
    return dict(parser.items(section))


def _boto3_provider(profile: str) -> Any:
    """Returns obstore's provider over boto3's session of a profile."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingExtraError.about(
            "this AWS profile needs the package boto3",
            place=f"the profile {profile!r}",
            found=f"single sign-on, a role or a process for its keys; {error}",
            fix="pip install boto3, or put keys in the environment, as `aws configure export-credentials` prints them",
        ) from error

    return Boto3CredentialProvider(boto3.Session(profile_name=profile))
