//! `strftime_now`: the date in UTC, formatted as Python's `strftime` does in the C locale.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Seconds since 1970 by the system's clock.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Formats `unix_seconds`. Directives outside the common ones are copied as they stand.
pub(crate) fn strftime(unix_seconds: u64, format: &str) -> String {
    let days = unix_seconds / 86_400;
    let (year, month, day) = civil(days);
    let weekday = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let clock = unix_seconds % 86_400;
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let mut number = |n: u64, width: usize| {
            // Writing to a string cannot fail.
            let _ = write!(out, "{n:0width$}", width = if padded { width } else { 0 });
        };
        match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(day_of_year(year, month, day), 3),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => out.push_str(&strftime(unix_seconds, "%Y-%m-%d")),
            Some('T') => out.push_str(&strftime(unix_seconds, "%H:%M:%S")),
            Some('D') => out.push_str(&strftime(unix_seconds, "%m/%d/%y")),
            Some('Z' | 'z') => {}
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of a day since 1970, by eras of 400 years that begin in March.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

fn day_of_year(year: u64, month: u64, day: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][(month - 1) as usize];
    before + day + u64::from(leap && month > 2)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates() {
        for (seconds, format, expected) in [
            (0, "%d %b %Y", "01 Jan 1970"),
            (
                951_782_400,
                "%A, %-d %B %Y %j",
                "Tuesday, 29 February 2000 060",
            ),
            (1_767_225_599, "%F %T %I%p", "2025-12-31 23:59:59 11PM"),
            (
                1_767_225_600,
                "%a %y/%m/%d %H 100%% %q",
                "Thu 26/01/01 00 100% %q",
            ),
        ] {
            assert_eq!(strftime(seconds, format), expected);
        }
    }
}
