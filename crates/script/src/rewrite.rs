//! Rewriting a path below the home directory to a literal, by the spans of the parse.

use thiserror::Error;

use crate::effects::Target;
use crate::{Dialect, ParseError, analyze};

/// Why a script was not rewritten.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum RewriteError {
    /// The script is not understood.
    #[error("the script cannot be rewritten")]
    Parse(#[from] ParseError),
    /// The token is not a path below the home directory at a known place of the script.
    #[error("`{0}` does not appear as a path below the home directory")]
    NotFound(String),
    /// The home directory is not an absolute path of printable text.
    #[error("the home directory is not an absolute path")]
    Home,
    /// The rewritten script does not say what was meant.
    #[error("the rewritten script is not what was meant")]
    Changed,
}

/// Returns `script` with every occurrence of `token` (`$HOME/x`, `${HOME}/x`, `~/x`) as a path
/// replaced by the literal path below `home`, quoted so that the shell reads exactly that.
///
/// # Errors
/// A [`RewriteError`] when the token is not such a path, or the result would not parse back to
/// the same programs.
pub fn rewrite_home(
    script: &str,
    dialect: Dialect,
    token: &str,
    home: &str,
) -> Result<String, RewriteError> {
    let is_fine = home.starts_with('/') && !home.chars().any(char::is_control);
    if !is_fine {
        return Err(RewriteError::Home);
    }
    let before = analyze(script, dialect)?;
    let mut places: Vec<_> = before
        .effects
        .iter()
        .filter(|effect| effect.token == token)
        .filter_map(|effect| match (&effect.target, &effect.span) {
            (Target::Home { rest }, Some(span)) => Some((span.clone(), rest.clone())),
            _ => None,
        })
        .collect();
    places.sort_by_key(|(span, _)| span.start);
    places.dedup();
    if places.is_empty() {
        return Err(RewriteError::NotFound(token.to_owned()));
    }
    let mut rewritten = script.to_owned();
    for (span, rest) in places.into_iter().rev() {
        let path = format!("{}{rest}", home.trim_end_matches('/'));
        if script.get(span.clone()).is_none_or(|found| !found.ends_with(token)) {
            return Err(RewriteError::NotFound(token.to_owned()));
        }
        rewritten.replace_range(span, &quote(&path));
    }
    let after = analyze(&rewritten, dialect)?;
    let same = after.programs.len() == before.programs.len()
        && after.names() == before.names()
        && after.effects.len() == before.effects.len();
    if same { Ok(rewritten) } else { Err(RewriteError::Changed) }
}

/// Returns `text` quoted so that every shell reads exactly it as one word.
#[must_use]
pub fn quote(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}
