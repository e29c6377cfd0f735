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
        let fps = believable_fps(info.fps, estimated_fps(&order, info.time_unit_s));
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

/// The container's average rate, unless the frames' own times say less than half or more than twice that: some recorders
/// write their clock's rate (1000) where the frame rate belongs.
fn believable_fps(stated: f64, measured: f64) -> f64 {
    let odd = measured > 0.0 && !(0.5..=2.0).contains(&(stated / measured));
    if stated <= 0.0 || odd {
        measured
    } else {
        stated
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    const INFO: Info =
        Info { width: 56, height: 56, transposed: false, flip_x: false, flip_y: false, fps: 10.0, time_unit_s: 0.1 };

    /// Letters: K key, P other, H hidden; the time of each packet beside it.
    fn plan(packets: &[(char, i64)], fps: f64) -> Result<Plan> {
        let packets: Vec<Packet> =
            packets.iter().map(|&(c, t)| Packet { time: Some(t), key: c == 'K', hidden: c == 'H' }).collect();
        let options = VideoOptions { fps, ..VideoOptions::default() };
        Plan::new(&packets, &INFO, &options, (56, 56))
    }

    #[test]
    fn ranks_follow_time_and_leave_out_what_is_not_shown() {
        let plan =
            plan(&[('P', 0), ('K', 10), ('P', 8), ('P', 13), ('P', 11), ('H', 12), ('P', 14)], 5.0).expect("fine");
        let ranks: Vec<_> = plan.packets.iter().map(|s| s.rank).collect();
        assert_eq!(ranks, [None, Some(0), None, Some(2), Some(1), None, Some(3)]);
        assert!(plan.by_time && plan.packets[0].before_first_key);
        assert_eq!(plan.wanted, [0, 2, 3]);
    }

    #[test]
    fn groups_without_wanted_frames_are_left_out_unless_their_successor_leans_on_them() {
        let mut packets: Vec<(char, i64)> = (0..40).map(|t| (if t % 10 == 0 { 'K' } else { 'P' }, t)).collect();
        let unwanted = |plan: &Plan| plan.packets.iter().map(|s| s.group_unwanted).collect::<Vec<_>>();
        let closed = plan(&packets, 0.25).expect("fine"); // wanted: 0 and 39
        assert_eq!(closed.wanted, [0, 39]);
        let marked = unwanted(&closed);
        assert!(!marked[0] && marked[10] && marked[29] && !marked[30]);
        // One more key frame, shown after the frame that is now wanted as the last but one: its leading frame needs the
        // group before.
        packets.push(('K', 45));
        packets.push(('P', 44));
        packets.push(('P', 46));
        let list: Vec<Packet> =
            packets.iter().map(|&(c, t)| Packet { time: Some(t), key: c == 'K', hidden: false }).collect();
        let mut steps = vec![Step::default(); list.len()];
        steps[41].wanted = true;
        mark_groups(&list, &mut steps, 0);
        assert!(steps[10].group_unwanted && !steps[35].group_unwanted);
    }

    #[test]
    fn repeated_times_mean_counting() {
        let plan = plan(&[('K', 0), ('P', 1), ('P', 1), ('P', 2)], 5.0).expect("fine");
        assert!(!plan.by_time && !plan.skips());
        assert_eq!(plan.packets.iter().filter_map(|s| s.rank).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn nothing_to_show_is_corrupt() {
        for packets in [&[][..], &[('P', 0), ('P', 1)], &[('H', 0)]] {
            assert_eq!(plan(packets, 1.0).err().map(|e| e.code), Some(Code::Corrupt));
        }
    }

    #[test]
    fn a_clock_rate_is_no_frame_rate() {
        assert_eq!(believable_fps(25.0, 24.0), 25.0);
        assert_eq!(believable_fps(1_000.0, 30.0), 30.0);
        assert_eq!(believable_fps(0.0, 30.0), 30.0);
        assert_eq!(believable_fps(25.0, 0.0), 25.0);
    }
}
