//! Relative dates (`2024-01-31 +1 month`) as GNU's `date` counts them, by the calendar.
//!
//! The interpreter's `date` takes 30 days for a month. Here such a date is worked out first, and
//! `date` is given the result.

const DAY: i64 = 86_400;

/// Returns the arguments of `date` with every relative date worked out.
pub(in crate::hermetic::worker) fn spell_out_date(args: Vec<String>, now: i64) -> Vec<String> {
    let mut is_value = false;
    let spell = |arg: String| {
        if std::mem::take(&mut is_value) {
            return absolute_date(&arg, now).unwrap_or(arg);
        }
        if let Some(date) = arg.strip_prefix("--date=") {
            return absolute_date(date, now).map_or(arg.clone(), |date| format!("--date={date}"));
        }
        is_value = arg == "--date"
            || (arg.starts_with('-') && !arg.starts_with("--") && arg.ends_with('d'));
        arg
    };
    args.into_iter().map(spell).collect()
}

/// A date that is being put together.
struct Moment {
    /// Days since 1970-01-01, once a date is known.
    day: Option<i64>,
    /// Seconds of the day, once a time is known.
    time: Option<i64>,
    /// Seconds since the epoch, where that is how the date was written.
    epoch: Option<i64>,
    /// Whether the time is that of Greenwich, and how many seconds it is ahead of it.
    ahead: Option<i64>,
    months: i64,
    days: i64,
    seconds: i64,
    is_relative: bool,
}

/// Returns a date with relative parts as one without; `None` when there are none, or when it is
/// not understood, which is for `date` to say.
fn absolute_date(text: &str, now: i64) -> Option<String> {
    let lower = text.trim().to_lowercase();
    let spaced = lower.replace('+', " +");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut moment = Moment::new();
    let mut rest = tokens.as_slice();
    while let Some((token, following)) = rest.split_first() {
        rest = moment.take(token, following)?;
    }
    moment.is_relative.then(|| moment.text(now))?
}

impl Moment {
    fn new() -> Self {
        Self {
            day: None,
            time: None,
            epoch: None,
            ahead: None,
            months: 0,
            days: 0,
            seconds: 0,
            is_relative: false,
        }
    }

    /// Takes one item, and returns what follows it.
    fn take<'a>(&mut self, token: &str, rest: &'a [&'a str]) -> Option<&'a [&'a str]> {
        match token {
            "now" | "today" => return Some(rest),
            "yesterday" => return self.add(-1, "day", rest),
            "tomorrow" => return self.add(1, "day", rest),
            "midnight" => return self.at(0, rest),
            "noon" => return self.at(DAY / 2, rest),
            "utc" | "gmt" | "z" => {
                self.ahead = Some(0);
                return Some(rest);
            }
            "next" | "last" => {
                let (unit, rest) = rest.split_first()?;
                return self.add(if token == "next" { 1 } else { -1 }, unit, rest);
            }
            _ => {}
        }
        if let Some(epoch) = token.strip_prefix('@') {
            self.epoch = Some(epoch.parse().ok()?);
            return Some(rest);
        }
        if let Some(day) = day_of(token.split('t').next()?) {
            self.day = Some(day);
            return match token.split_once('t') {
                Some((_, time)) => self.take_time(time).map(|()| rest),
                None => Some(rest),
            };
        }
        if token.contains(':') {
            return self.take_time(token).map(|()| rest);
        }
        self.take_number(token, rest)
    }

    /// Takes `+1 day`, `1day`, `- 3 weeks`, `2 days ago`, or a zone behind a time: `+02`.
    fn take_number<'a>(&mut self, token: &str, rest: &'a [&'a str]) -> Option<&'a [&'a str]> {
        let sign = if token.starts_with('-') { -1 } else { 1 };
        let plain = token.trim_start_matches(['+', '-']);
        if plain.is_empty() {
            let (number, rest) = rest.split_first()?;
            let signed = format!("{}{number}", if sign < 0 { "-" } else { "+" });
            return self.take_number(&signed, rest);
        }
        let digits = plain.len() - plain.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = plain.split_at_checked(digits)?;
        // As in GNU's, a signed number behind a time is its zone.
        let is_signed = token.starts_with(['+', '-']);
        if unit.is_empty() && is_signed && self.time.is_some() && self.ahead.is_none() {
            let number: i64 = number.parse().ok()?;
            let (hours, minutes) =
                if digits > 2 { (number / 100, number % 100) } else { (number, 0) };
            self.ahead = Some(sign * (hours * 3600 + minutes * 60));
            return Some(rest);
        }
        let count = if number.is_empty() { 1 } else { number.parse().ok()? };
        if unit.is_empty() {
            let (unit, rest) = rest.split_first()?;
            return self.add(sign * count, unit, rest);
        }
        self.add(sign * count, unit, rest)
    }

    fn add<'a>(&mut self, count: i64, unit: &str, rest: &'a [&'a str]) -> Option<&'a [&'a str]> {
        let (count, rest) = match rest.split_first() {
            Some((&"ago", rest)) => (count.checked_neg()?, rest),
            _ => (count, rest),
        };
        let seconds = |each: i64| count.checked_mul(each);
        let singular = unit.strip_suffix('s').unwrap_or(unit);
        match singular {
            "year" => self.months += seconds(12)?,
            "month" => self.months += count,
            "fortnight" => self.days += seconds(14)?,
            "week" => self.days += seconds(7)?,
            "day" => self.days += count,
            "hour" => self.seconds += seconds(3600)?,
            "minute" | "min" => self.seconds += seconds(60)?,
            "second" | "sec" => self.seconds += count,
            _ => return None,
        }
        self.is_relative = true;
        Some(rest)
    }

    fn at<'a>(&mut self, seconds: i64, rest: &'a [&'a str]) -> Option<&'a [&'a str]> {
        self.time = Some(seconds);
        Some(rest)
    }

    fn take_time(&mut self, text: &str) -> Option<()> {
        let text = match text.strip_suffix('z') {
            Some(text) => {
                self.ahead = Some(0);
                text
            }
            None => text,
        };
        let mut parts = text.split(':').map(|part| part.parse::<i64>().ok());
        let (hours, minutes) = (parts.next()??, parts.next()??);
        let seconds = parts.next().map_or(Some(0), |seconds| seconds)?;
        let is_time = hours < 24 && minutes < 60 && seconds < 61 && parts.next().is_none();
        self.time = is_time.then_some(hours * 3600 + minutes * 60 + seconds);
        self.time.map(|_| ())
    }

    /// Returns the moment as `date` reads it.
    fn text(&self, now: i64) -> Option<String> {
        let from_now = self.epoch.unwrap_or(now);
        let day = self.day.unwrap_or(from_now.div_euclid(DAY));
        let is_now = self.day.is_none() && self.time.is_none();
        let time = self.time.unwrap_or(if is_now { from_now.rem_euclid(DAY) } else { 0 });
        let (year, month, day_of_month) = civil(day);
        let months = year.checked_mul(12)?.checked_add(month - 1)?.checked_add(self.months)?;
        let first = days_since_epoch(months.div_euclid(12), months.rem_euclid(12) + 1, 1);
        let day = first.checked_add(day_of_month - 1)?.checked_add(self.days)?;
        let seconds = day.checked_mul(DAY)?.checked_add(time)?.checked_add(self.seconds)?;
        if is_now || self.epoch.is_some() {
            return Some(format!("@{seconds}"));
        }
        if let Some(ahead) = self.ahead {
            return Some(format!("@{}", seconds - ahead));
        }
        // No zone was named: the clock of the script's own zone.
        let DayAndTime { year, month, day, hours, minutes, seconds } = day_and_time(seconds);
        Some(format!("{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02}"))
    }
}

/// A moment of Greenwich's clock, taken apart.
pub(super) struct DayAndTime {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
    pub(super) hours: i64,
    pub(super) minutes: i64,
    pub(super) seconds: i64,
}

/// Returns what the clock of Greenwich shows at a moment.
pub(super) fn day_and_time(epoch: i64) -> DayAndTime {
    let (year, month, day) = civil(epoch.div_euclid(DAY));
    let time = epoch.rem_euclid(DAY);
    DayAndTime { year, month, day, hours: time / 3600, minutes: time / 60 % 60, seconds: time % 60 }
}

/// Returns the day of a date such as `2024-01-31`.
fn day_of(text: &str) -> Option<i64> {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if year.len() != 4 || parts.next().is_some() {
        return None;
    }
    let (year, month, day): (i64, i64, i64) =
        (year.parse().ok()?, month.parse().ok()?, day.parse().ok()?);
    let found = days_since_epoch(year, month, day);
    (civil(found) == (year, month, day)).then_some(found)
}

/// Returns the days between 1970-01-01 and a date of the Gregorian calendar.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Returns year, month and day.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_dates_follow_the_calendar() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(absolute_date(text, 1_577_836_800).as_deref(), expected, "{text}");
        };
        check("2024-01-31 +1 day", Some("2024-02-01 00:00:00"));
        check("2024-01-31 + 1 month", Some("2024-03-02 00:00:00"));
        check("2024-02-29 -1 year", Some("2023-03-01 00:00:00"));
        check("2024-01-15 2 weeks ago", Some("2024-01-01 00:00:00"));
        check("2024-01-15T10:00:00Z + 90 minutes", Some("@1705318200"));
        check("@0 +1 day", Some("@86400"));
        check("1 month ago", Some("@1575158400"));
        check("2024-01-15", None);
        check("next friday", None);
        check("2024-02-30 +1 day", None);
    }
}
