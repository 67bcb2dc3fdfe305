//! Prints the story of a verified bundle: five questions, answered on one screen.

use serde_json::{Value, json};
use warrant_protocol::story::{Story, answers, summarize};
use warrant_protocol::verify::VerifiedBundle;

use crate::ui::{self, Tone, paint};

/// Prints the story.
pub(crate) fn print(verified: &VerifiedBundle, as_json: bool) {
    if as_json { ui::json(&as_value(verified)) } else { ui::data(&text(verified)) }
}

fn as_value(verified: &VerifiedBundle) -> Value {
    let answers: serde_json::Map<String, Value> = answers(verified)
        .into_iter()
        .map(|answer| (answer.question.to_owned(), json!(answer.lines)))
        .collect();
    let events: Vec<_> = verified.chain().events().iter().map(summarize).collect();
    json!({"story": Story::of(verified), "answers": answers, "events": events})
}

fn text(verified: &VerifiedBundle) -> String {
    let story = Story::of(verified);
    let has_color = ui::stdout_has_color();
    let mut text = format!(
        "{} {} · {} events · head {}\n",
        story.run_id,
        paint(&story.status, tone(&story.status), has_color),
        story.event_count,
        story.events_head,
    );
    for answer in answers(verified) {
        text.push_str(&format!("\n{}\n", paint(answer.question, Tone::Quiet, has_color)));
        for line in answer.lines {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

fn tone(status: &str) -> Tone {
    if status == "completed" { Tone::Good } else { Tone::Bad }
}
