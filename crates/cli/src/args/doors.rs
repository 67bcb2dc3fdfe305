//! Arguments of `warrant doors`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Doors {
    /// Make a token for the doors and print it, once; only its digest is kept
    #[command(after_help = HELP)]
    Issue {
        /// A name for it; receipts name its holder as service:door-NAME
        #[arg(value_name = "NAME")]
        name: String,
        /// What it opens: the doors of sandboxes, or MCP in one workspace
        #[arg(long, value_name = "SCOPE", default_value = "sandboxes",
              value_parser = ["sandboxes", "mcp"])]
        scope: String,
        /// Where a token of MCP works, and nowhere else [default: the current directory]
        #[arg(long, value_name = "DIR")]
        workspace: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the tokens by name, with what they open; the tokens themselves are not kept
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token; it opens nothing from now on
    Revoke {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

const HELP: &str = "The doors are opened by warrant plane start --doors. Then, unmodified clients:
  E2B:         E2B_API_URL=URL E2B_SANDBOX_URL=URL E2B_API_KEY=TOKEN
  Daytona:     DAYTONA_API_URL=URL/api DAYTONA_API_KEY=TOKEN
  OpenSandbox: OPEN_SANDBOX_DOMAIN=HOST:PORT OPEN_SANDBOX_API_KEY=TOKEN
  HELM:        baseUrl and daytonaUrl URL, apiKey and daytonaApiKey TOKEN
And with --scope mcp, agents that speak MCP over HTTP:
  claude mcp add --transport http warrant URL/mcp --header \"Authorization: Bearer TOKEN\"";
