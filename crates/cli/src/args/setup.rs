//! Arguments of the commands that set things up: home, keys, secrets, policy, approvals.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make a key pair: NAME.key.pem (readable by you alone) and NAME.pub.pem
    New {
        /// Path and name of the two files, without their endings
        #[arg(value_name = "NAME")]
        name: PathBuf,
    },
    /// Print the public key of a key file
    Show {
        /// A public or private key file
        #[arg(value_name = "KEYFILE")]
        file: PathBuf,
    },
    /// Print the id of a key file, as contracts and receipts name it
    Id {
        /// A public or private key file
        #[arg(value_name = "KEYFILE")]
        file: PathBuf,
    },
}
