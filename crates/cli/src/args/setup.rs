//! Arguments of the commands that set things up: home, keys, secrets, policy, approvals.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The policy to start with: default, strict, dev, ci or reference [default: default]
    #[arg(long, value_name = "PRESET")]
    pub(crate) preset: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make a key pair: NAME.key.pem (readable by you alone) and NAME.pub.pem
    #[command(
        after_help = "Example:\n  warrant keys new alice && warrant keys approver alice alice.pub.pem"
    )]
    New {
        /// Path and name of the two files, without their endings
        #[arg(value_name = "NAME")]
        name: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the public key of a key file
    Show {
        /// A public or private key file
        #[arg(value_name = "KEYFILE")]
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Register the public key of someone whose approvals count here
    Approver {
        /// Their name, as policy writes it
        #[arg(value_name = "NAME")]
        name: String,
        /// Their public key file
        #[arg(value_name = "KEYFILE")]
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the plane's or the runner's key of this home; the old key signs the new one
    #[command(
        after_help = "The plane must be stopped and no run under way. Bundles made before still verify. Bundles\nmade later carry the succession, so whoever trusts the old key (--trust plane=OLD.pem) may\nfollow; runners follow by themselves. Nothing that the old key signs with a later date counts."
    )]
    Rotate {
        /// Which key: plane or runner
        #[arg(value_name = "WHICH", value_parser = ["plane", "runner"])]
        which: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the id of a key file, as contracts and receipts name it
    Id {
        /// A public or private key file
        #[arg(value_name = "KEYFILE")]
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

const SECRET_HELP: &str = "\
Examples:
  warrant secret set NPM_TOKEN < token.txt
  warrant secret set NPM_TOKEN --from-file token.txt
  warrant sandbox exec --secret NPM_TOKEN -- npm publish   # where policy releases it";

#[derive(Debug, Subcommand)]
pub(crate) enum Secret {
    /// Keep a secret; the value comes from stdin or a file, never from the command line
    #[command(after_help = SECRET_HELP)]
    Set {
        /// Its name, as the program will see it in its environment
        #[arg(value_name = "NAME")]
        name: String,
        /// Read the value from this file instead of stdin
        #[arg(long = "from-file", value_name = "FILE")]
        from_file: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the names of the secrets; values are never shown
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Forget a secret
    Rm {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Approve {
    /// The waiting run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Sign as this approver [default: the name of the key file, else you]
    #[arg(long = "as", value_name = "NAME", requires = "key")]
    pub(crate) name: Option<String>,
    /// Sign with this private key instead of your own
    #[arg(long, value_name = "KEYFILE")]
    pub(crate) key: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Deny {
    /// The waiting run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Why, for the receipt
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const POLICY_HELP: &str = "\
The policy is checked first, with its own examples; a broken one is refused and the old one stays.

Examples:
  warrant policy set dev
  warrant policy show --json > now.json   # what to start an own folder from
  warrant policy check ./policy && warrant policy diff ./policy && warrant policy set ./policy";

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Print the policy in force
    Show {
        /// Print JSON: hash, document, rules
        #[arg(long)]
        json: bool,
    },
    /// Put a policy in force: a preset, or a folder with document.json, rules.cedar, tests.jsonl
    #[command(after_help = POLICY_HELP)]
    Set {
        /// default, strict, dev, ci, reference, or a folder
        #[arg(value_name = "PRESET|DIR")]
        source: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a policy without putting it in force
    Check {
        /// default, strict, dev, ci, reference, or a folder; the policy of this home without it
        #[arg(value_name = "PRESET|DIR")]
        source: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a policy's own examples (tests.jsonl)
    #[command(after_help = "Exit codes: 0 all pass, 1 an example is decided otherwise, 2 usage.")]
    Test {
        /// default, strict, dev, ci, reference, or a folder; the policy in force without it
        #[arg(value_name = "PRESET|DIR")]
        source: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say which rules decide a command, and why
    #[command(after_help = "Example:\n  warrant policy explain -- git push --force")]
    Explain {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The program and its arguments
        #[arg(
            value_name = "ARGV",
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        argv: Vec<String>,
    },
    /// Say which recorded requests another policy would decide differently
    #[command(after_help = "Example:\n  warrant policy diff strict")]
    Diff {
        /// default, strict, dev, ci, reference, or a folder
        #[arg(value_name = "PRESET|DIR")]
        source: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}
