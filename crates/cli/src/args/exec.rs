//! Arguments of `warrant sandbox`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const PROVIDER_PORT_HELP: &str = "\
One JSON object per line on standard input, one per line on standard output, several calls at a time:

  {\"id\":1,\"call\":\"prepareRun\",\"request\":{…}}   {\"id\":1,\"result\":{…}}
  {\"id\":2,\"call\":\"run\",\"request\":{…}}          {\"id\":2,\"error\":{\"code\":…,\"message\":…}}

The objects are described in docs/provider-port.md. The policy of this home judges every request,
whatever the caller granted. When standard input ends, what still runs is stopped with its receipt.

Exit codes: 0 standard input ended, 1 failed, 2 usage.";

#[derive(Debug, Subcommand)]
pub(crate) enum Sandbox {
    /// Run one program: judged, contracted, inside a checked boundary, with a receipt
    #[command(after_help = EXEC_HELP)]
    Exec(Box<Exec>),
    /// Go on where a run of this machine ended; the same as warrant continue
    #[command(after_help = super::continuing::CONTINUE_HELP, hide = true)]
    Continue(Box<super::Continue>),
    /// Print what a tier enforces on this machine, found by trying
    Probe {
        /// The tier; all local ones without it
        #[arg(long, value_name = "P")]
        provider: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List tiers and providers with what they hold, their version and the tier they earned
    ///
    /// At a provider with a key a sandbox is made for this, looked at and deleted.
    Providers {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete what runs left at remote providers because they crashed or their key was revoked
    ///
    /// Sandboxes are found by the label of this home; those of living runs are left alone.
    /// The next run at a provider does the same by itself when it finds a record left behind.
    Reap {
        /// The provider; all that have a key without it
        #[arg(long, value_name = "P")]
        provider: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Serve an external runtime as its sandbox provider (standard input and output)
    #[command(after_help = PROVIDER_PORT_HELP)]
    ProviderPort {
        /// Which local tier: namespace, hermetic, process or mock [default: the strongest one that a
        /// probe confirms here]
        #[arg(long, value_name = "P")]
        provider: Option<String>,
        #[command(flatten)]
        logging: crate::logs::LogArguments,
    },
    /// Find out by black-box checks which conformance tier a provider earns
    #[command(
        after_help = "Exit codes: 0 pass, 1 fail, 2 usage.\n\nExample:\n  warrant sandbox conform --provider namespace --tier sovereign --report report.json"
    )]
    Conform {
        /// The provider
        #[arg(long, value_name = "P")]
        provider: String,
        /// compatible, verified or sovereign
        #[arg(long, value_name = "TIER")]
        tier: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Write the signed report here
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
}

const EXEC_HELP: &str = "\
The program's stdout and stderr pass through; one line on stderr says how it was governed.
Its exit code is the exit code. Codes of our own, always named in that line and in --json:
  1    something of ours or the machine failed       7  the boundary here is too weak
  2    usage                                         8  it needs more than it was given
  3    denied by policy                              9  a limit other than time struck
  4    waiting for approval                        124  its time was up
  5    approval refused or expired                 130  stopped from outside, or nobody reads on
A program that a signal N ends has the code 128+N; the line says then that it was its own.

Examples:
  warrant sandbox exec -- npm test
  warrant sandbox exec --allow-host registry.npmjs.org -- npm ci
  warrant sandbox exec --provider e2b -- npm test
  warrant sandbox exec --dry-run -- sh -c 'rm -rf ~/x'";

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Which tier or provider: mock, process, hermetic, namespace, opensandbox, e2b, daytona
    /// [default: the strongest one that a probe confirms here]
    #[arg(long, value_name = "P")]
    pub(crate) provider: Option<String>,
    /// Image or template, where the provider has them
    #[arg(long, value_name = "I")]
    pub(crate) image: Option<String>,
    /// Weaker evidence to be content with, LEVEL:COMPONENT, bound in the receipt (can be repeated)
    ///
    /// LEVEL is reported, requested or unavailable; policy says how weak it may be.
    #[arg(long = "accept-evidence", value_name = "E")]
    pub(crate) accept_evidence: Vec<String>,
    /// How long it may take: 500ms, 30s, 5m, 1h
    #[arg(long, value_name = "D", value_parser = super::super::duration::parse)]
    pub(crate) timeout: Option<u64>,
    /// A host it may reach, `host`, `*.host`, either with `:port` (can be repeated)
    #[arg(long = "allow-host", value_name = "H")]
    pub(crate) allow_hosts: Vec<String>,
    /// A secret to release to it by name (can be repeated)
    #[arg(long = "secret", value_name = "NAME")]
    pub(crate) secrets: Vec<String>,
    /// A secret to release to it as a file; the variable NAME_FILE, or VAR, says where
    #[arg(long = "secret-file", value_name = "NAME[=VAR]")]
    pub(crate) secret_files: Vec<String>,
    /// A directory or file it may also read (can be repeated)
    #[arg(long = "read", value_name = "DIR")]
    pub(crate) read: Vec<PathBuf>,
    /// A directory it may also write (can be repeated)
    #[arg(long = "write", value_name = "DIR")]
    pub(crate) write: Vec<PathBuf>,
    /// A variable of its environment (can be repeated)
    #[arg(long = "env", value_name = "K=V")]
    pub(crate) env: Vec<String>,
    /// Where writes to the workspace go
    ///
    /// isolated: into a layer of this run, kept as a diff for `warrant pull`.
    /// workspace-rollback: into the workspace when the program succeeds, put back when it fails.
    #[arg(long, value_name = "MODE", default_value = "isolated")]
    pub(crate) mode: String,
    /// With workspace-rollback: what to do when the program fails, rollback or keep
    #[arg(long = "on-failure", value_name = "WHAT", default_value = "rollback")]
    pub(crate) on_failure: String,
    /// The workspace [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Ask as an agent of this name that works for you, so that you can approve what it asks
    #[arg(long, value_name = "NAME", value_parser = agent_name)]
    pub(crate) agent: Option<String>,
    /// Give the program nothing to read
    #[arg(long = "no-stdin")]
    pub(crate) reads_nothing: bool,
    /// Give the program a terminal
    #[arg(long)]
    pub(crate) tty: bool,
    /// Wait for an approval instead of ending with 4
    #[arg(long)]
    pub(crate) wait: bool,
    /// Say what would happen; nothing runs, nothing is stored
    #[arg(long = "dry-run")]
    pub(crate) dry_run: bool,
    /// Print one JSON object on stdout instead of the program's output
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the bundle of the run here
    #[arg(long, value_name = "BUNDLE")]
    pub(crate) out: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        value_name = "ARGV",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) argv: Vec<String>,
}

impl Exec {
    /// Returns the arguments of an exec with nothing but a program.
    pub(crate) fn plain(argv: &[String]) -> Self {
        Self {
            provider: None,
            image: None,
            accept_evidence: Vec::new(),
            timeout: None,
            allow_hosts: Vec::new(),
            secrets: Vec::new(),
            secret_files: Vec::new(),
            read: Vec::new(),
            write: Vec::new(),
            env: Vec::new(),
            mode: "isolated".to_owned(),
            on_failure: "rollback".to_owned(),
            workspace: None,
            agent: None,
            reads_nothing: false,
            tty: false,
            wait: false,
            dry_run: true,
            json: false,
            out: None,
            argv: argv.to_vec(),
        }
    }
}

fn agent_name(text: &str) -> Result<String, String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=32).contains(&text.len()) && text.bytes().all(is_allowed) {
        Ok(text.to_owned())
    } else {
        Err("an agent's name is 1 to 32 of a-z, 0-9 and -".to_owned())
    }
}
