//! The files of the page, as they are in the binary.

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Returns the type and the bytes of a file.
pub(super) fn find(name: &str) -> Option<(&'static str, &'static [u8])> {
    Some(match name {
        "index.html" => (HTML, include_bytes!("../../ui/index.html")),
        "app.css" => ("text/css; charset=utf-8", include_bytes!("../../ui/app.css")),
        "icon.svg" => ("image/svg+xml", include_bytes!("../../ui/icon.svg")),
        "api.js" => (SCRIPT, include_bytes!("../../ui/api.js")),
        "app.js" => (SCRIPT, include_bytes!("../../ui/app.js")),
        "dom.js" => (SCRIPT, include_bytes!("../../ui/dom.js")),
        "house.js" => (SCRIPT, include_bytes!("../../ui/house.js")),
        "run.js" => (SCRIPT, include_bytes!("../../ui/run.js")),
        "runs.js" => (SCRIPT, include_bytes!("../../ui/runs.js")),
        "story.js" => (SCRIPT, include_bytes!("../../ui/story.js")),
        _ => return None,
    })
}
