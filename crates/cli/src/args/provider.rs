//! Arguments of `warrant provider`.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Provider {
    /// List the remote providers: whether their key is set, what was accepted and pinned
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one provider: what it cannot prove, what was accepted, by whom and when
    Show {
        /// opensandbox, e2b or daytona
        #[arg(value_name = "PROVIDER")]
        provider: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Accept that a provider cannot prove a component, as a change of policy in your name
    #[command(after_help = ACCEPT_HELP)]
    Accept {
        /// opensandbox, e2b or daytona
        #[arg(value_name = "PROVIDER")]
        provider: String,
        /// The component, as the refusal names it: image_digest
        #[arg(value_name = "COMPONENT")]
        component: String,
        /// The weakest evidence that counts for it: reported, requested or unavailable
        #[arg(long, value_name = "LEVEL", default_value = "requested",
              value_parser = ["reported", "requested", "unavailable"])]
        evidence: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Pin the versions of a provider that count, as a change of policy in your name
    #[command(after_help = PIN_HELP)]
    Pin {
        /// opensandbox, e2b or daytona
        #[arg(value_name = "PROVIDER")]
        provider: String,
        /// A version, a beginning or a range [default: the version that the provider reports now]
        #[arg(value_name = "VERSION")]
        version: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a sandbox, look at it, delete it, and say what policy would refuse
    #[command(
        after_help = "Exit codes: 0 a plain run would be taken, 2 usage, 7 it would be refused; each refusal names\nthe command that accepts it."
    )]
    Test {
        /// opensandbox, e2b or daytona
        #[arg(value_name = "PROVIDER")]
        provider: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

const ACCEPT_HELP: &str = "\
The policy gets `controls.providers.PROVIDER.accepted.COMPONENT` with the level, your name and the
time. Every receipt from then on binds that policy, and tells the level as `evidenceAccepted`.
What does not hold at all cannot be accepted.

Examples:
  warrant provider accept e2b image_digest
  warrant provider accept daytona processes.namespace --evidence unavailable";

const PIN_HELP: &str = "\
The policy gets an entry in `controls.providers.PROVIDER.versions` with your name and the time. Once
a version is pinned, the versions that ship with this program count no more.

Examples:
  warrant provider pin e2b                    # what it reports now
  warrant provider pin e2b 0.6.13
  warrant provider pin e2b '0.6.*'
  warrant provider pin e2b '>=0.6.13 <0.7'";
