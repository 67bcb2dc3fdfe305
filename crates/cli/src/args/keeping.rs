//! Arguments of the commands that keep a home: backups, restoring, checking.

use std::path::PathBuf;

use clap::Args;

const BACKUP_HELP: &str = "\
The plane and other commands may go on meanwhile: the file holds one moment of the store, every blob
checked against its digest, the policy and the public keys. Private keys, tokens and secrets are in
it only with --with-keys, sealed under a passphrase.

Exit codes: 0 written, 1 failed (then there is no file), 2 usage.

Examples:
  warrant backup home.backup
  warrant backup home.backup --with-keys --passphrase-file passphrase";

#[derive(Debug, Args)]
#[command(after_help = BACKUP_HELP)]
pub(crate) struct Backup {
    /// The file to write; it must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Include private keys, tokens and secrets, sealed under a passphrase
    #[arg(long)]
    pub(crate) with_keys: bool,
    #[command(flatten)]
    pub(crate) passphrase: PassphraseSource,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where a passphrase comes from.
#[derive(Debug, Clone, Args)]
pub(crate) struct PassphraseSource {
    /// Read the passphrase from this file [default: $WARRANT_BACKUP_PASSPHRASE, else the terminal]
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
}

const RESTORE_HELP: &str = "\
Everything is read and checked first, as `warrant fsck` checks; then the home gets its name. Runs
that were under way when the backup was taken are sealed as lost at the first use of the new home.
Without the keys of the backup the home gets fresh ones; what the old ones signed still verifies.

Exit codes: 0 restored, 1 failed (then the home is as it was), 2 usage.

Example:
  warrant --home /srv/warrant restore home.backup --passphrase-file passphrase";

#[derive(Debug, Args)]
#[command(after_help = RESTORE_HELP)]
pub(crate) struct Restore {
    /// The backup
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Leave sealed private keys out and make fresh ones
    #[arg(long, conflicts_with = "passphrase_file")]
    pub(crate) without_keys: bool,
    #[command(flatten)]
    pub(crate) passphrase: PassphraseSource,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const FSCK_HELP: &str = "\
Checks the database, every run with its chain, receipt and bundle (as `warrant verify` does), every
blob against its digest, and records of sessions. Changes nothing; the home may be in use.

Exit codes: 0 sound, 1 problems were found or nothing could be checked, 2 usage.";

#[derive(Debug, Args)]
#[command(after_help = FSCK_HELP)]
pub(crate) struct Fsck {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
