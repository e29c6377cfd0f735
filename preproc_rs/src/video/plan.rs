//! The first pass: times and flags of all packets, which frames are wanted, which packets need not be decoded.

use super::ffi::{Info, Packet, Video};
use super::VideoOptions;
use crate::error::{bail, Result};
use crate::limits::VIDEO_MAX_PACKETS;
use crate::memory::{try_vec, try_zeroed};
use crate::sampling::sample;

#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Place of its frame among presented frames; None when it is never shown.
    pub rank: Option<usize>,
    pub wanted: bool,
    pub before_first_key: bool,
    /// Neither this packet's group nor the leading frames of the next one hold a wanted frame.
    pub group_unwanted: bool,
}

pub struct Plan {
    pub packets: Vec<Step>,
    /// Numbers of the wanted frames, ascending.
    pub wanted: Vec<usize>,
    /// Average frame rate; 0 when nothing tells it.
    pub fps: f64,
    /// Frames are known by their times. False: times are missing or repeat, and frames are counted as they come out.
    pub by_time: bool,
}

impl Plan {
    pub fn read(video: &mut Video<'_>, info: &Info, options: &VideoOptions, size: (usize, usize)) -> Result<Plan> {
        let mut packets: Vec<Packet> = Vec::new();
        while let Some(packet) = video.read()? {
            if packets.len() == VIDEO_MAX_PACKETS {
                bail!(LimitExceeded, "the video has more than {VIDEO_MAX_PACKETS} frames, which is the limit");
            }
            if packets.len() == packets.capacity() {
                packets
                    .try_reserve(packets.len().max(256))
                    .map_err(|_| crate::memory::out_of_memory(packets.len() * 24))?;
            }
            packets.push(packet);
        }
        Plan::new(&packets, info, options, size)
    }

    fn new(packets: &[Packet], info: &Info, options: &VideoOptions, size: (usize, usize)) -> Result<Plan> {
        let Some(first_key) = packets.iter().position(|p| p.key) else {
            bail!(Corrupt, "the video holds no complete frame (no key frame was found)");
        };
        let mut steps: Vec<Step> = try_zeroed(packets.len())?;
        for step in &mut steps[..first_key] {
            step.before_first_key = true;
        }
        // Frames before the first key frame's own time refer to what is not there.
        let opening = packets[first_key].time;
        let shown: Vec<usize> = (first_key..packets.len())
            .filter(|&i| {
                !packets[i].hidden && (i == first_key || packets[i].time.zip(opening).is_none_or(|(t, o)| t >= o))
            })
            .collect();
        let mut order: Vec<(i64, usize)> = try_vec(shown.len())?;
        order.extend(shown.iter().filter_map(|&i| packets[i].time.map(|t| (t, i))));
        order.sort_unstable();
        let by_time = order.len() == shown.len() && order.windows(2).all(|w| w[0].0 < w[1].0);
        if by_time {
            for (rank, (_, i)) in order.iter().enumerate() {
                steps[*i].rank = Some(rank);
            }
        } else {
            for (rank, i) in shown.iter().enumerate() {
                steps[*i].rank = Some(rank);
            }
        }
        let total = shown.len();
        if total == 0 {
            bail!(Corrupt, "the video holds no frame that is shown");
        }
        let fps = if info.fps > 0.0 { info.fps } else { estimated_fps(&order, info.time_unit_s) };
        let room = (options.max_volume / (size.0 * size.1) as u64) as usize;
        // Frames come in pairs, the last one is repeated when they are odd.
        let room = (room & !1).max(2);
        let cap = options.max_frames.map_or(room, |most| most.min(room));
        let wanted = sample(total, fps, options.fps, Some(cap))?;
        for step in &mut steps {
            step.wanted = step.rank.is_some_and(|rank| wanted.binary_search(&rank).is_ok());
        }
        if by_time {
            mark_groups(packets, &mut steps, first_key);
        }
        Ok(Plan { packets: steps, wanted, fps, by_time })
    }

    /// Whether the fast pass leaves anything out.
    pub fn skips(&self) -> bool {
        self.by_time
    }
}

/// count / duration, the last frame lasting as long as the others on average.
fn estimated_fps(order: &[(i64, usize)], time_unit_s: f64) -> f64 {
    match (order.first(), order.last()) {
        (Some(first), Some(last)) if last.0 > first.0 && time_unit_s > 0.0 => {
            (order.len() - 1) as f64 / (last.0.saturating_sub(first.0) as f64 * time_unit_s)
        }
        _ => 0.0,
    }
}

/// A group runs from one key frame to before the next. Leading frames of a group (shown before its key frame) may refer
/// to the group before it, so that group counts as wanted when one of them is.
fn mark_groups(packets: &[Packet], steps: &mut [Step], first_key: usize) {
    let mut starts: Vec<usize> = (first_key..packets.len()).filter(|&i| packets[i].key).collect();
    starts.push(packets.len());
    for g in 0..starts.len() - 1 {
        let (start, end) = (starts[g], starts[g + 1]);
        let next_end = starts.get(g + 2).copied().unwrap_or(packets.len());
        let inside = steps[start..end].iter().any(|s| s.wanted);
        let leading = packets.get(end).is_some_and(|key| {
            (end..next_end).any(|i| steps[i].wanted && packets[i].time.zip(key.time).is_none_or(|(t, k)| t < k))
        });
        if !inside && !leading {
            for step in &mut steps[start..end] {
                step.group_unwanted = true;
            }
        }
    }
}
