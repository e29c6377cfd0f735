/* libavformat, libavcodec and libswscale (FFmpeg 5.1 to 7) behind a few functions: one video, from memory only.
 *
 * What a file may not do here: choose its demuxer (the caller names one of four), open anything else (io_open refuses,
 * no protocol is allowed), use another codec than the six, make one allocation above the cap, or run past the deadline.
 * Which frames are wanted is decided in Rust (src/video.rs); this file reads packets, decodes, converts to RGB. */

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

enum status {
  OK = 0, CORRUPT = 1, NO_VIDEO = 2, UNSUPPORTED = 3, NO_MEMORY = 4, CANCELLED = 5, DEADLINE = 6, END = 7, AGAIN = 8,
  TOO_MANY_PIXELS = 9
};

struct catalejo_video_limits {
  int64_t max_pixels;        /* of one frame, both by the container and by the codec */
  int64_t max_alloc;         /* bytes of one allocation inside the libraries */
  int64_t deadline_ms;       /* on the monotonic clock */
  int64_t probe_bytes;
  int32_t probe_packets;
  int32_t max_streams;
  int32_t threads;
  const volatile uint8_t *cancel;
};

struct catalejo_video_info {
  int32_t width, height;     /* by the container */
  int32_t transposed, flip_x, flip_y;
  int64_t fps_num, fps_den;  /* average frame rate, 0/0 when unknown */
  int64_t base_num, base_den;
};

struct catalejo_packet_info {
  int64_t pts;               /* INT64_MIN when unknown */
  int32_t key, discard;
};

struct catalejo_video {
  const uint8_t *data;
  int64_t size, at;
  struct catalejo_video_limits limits;
  const char *demuxer;
  AVFormatContext *format;
  AVIOContext *io;
  AVCodecContext *codec;
  AVPacket *packet;
  AVFrame *frame;
  struct SwsContext *scaler;
  int scaler_w, scaler_h, scaler_format, scaler_matrix, scaler_range;
  int stream;
  char message[160];
};

static const char *const CODECS = "h264,hevc,vp8,vp9,av1,libdav1d,mpeg4";

static void quiet(void *a, int b, const char *c, va_list d) { (void)a; (void)b; (void)c; (void)d; }

int64_t catalejo_video_now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int stopped(void *opaque) {
  const struct catalejo_video *v = opaque;
  return (v->limits.cancel && *v->limits.cancel) || catalejo_video_now_ms() > v->limits.deadline_ms;
}

static int why_stopped(const struct catalejo_video *v) {
  return v->limits.cancel && *v->limits.cancel ? CANCELLED : DEADLINE;
}

static int status_of(struct catalejo_video *v, int error) {
  if (stopped(v)) return why_stopped(v);
  av_strerror(error, v->message, sizeof v->message);
  if (error == AVERROR(ENOMEM)) return NO_MEMORY;
  if (error == AVERROR_EOF) return END;
  if (error == AVERROR(EAGAIN)) return AGAIN;
  if (error == AVERROR_PATCHWELCOME || error == AVERROR(ENOSYS) || error == AVERROR_DECODER_NOT_FOUND) return UNSUPPORTED;
  return CORRUPT;
}

static int io_read(void *opaque, uint8_t *out, int n) {
  struct catalejo_video *v = opaque;
  if (v->at >= v->size) return AVERROR_EOF;
  if (n > v->size - v->at) n = (int)(v->size - v->at);
  memcpy(out, v->data + v->at, (size_t)n);
  v->at += n;
  return n;
}

static int64_t io_seek(void *opaque, int64_t offset, int whence) {
  struct catalejo_video *v = opaque;
  whence &= ~AVSEEK_FORCE;
  if (whence == AVSEEK_SIZE) return v->size;
  int64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? v->at : whence == SEEK_END ? v->size : -1;
  if (from < 0 || offset < -from || offset > v->size - from) return AVERROR(EINVAL);
  v->at = from + offset;
  return v->at;
}

static int refuse_open(AVFormatContext *s, AVIOContext **pb, const char *url, int flags, AVDictionary **options) {
  (void)s; (void)pb; (void)url; (void)flags; (void)options;
  return AVERROR(EPERM);
}

static int codec_allowed(enum AVCodecID id) {
  switch (id) {
    case AV_CODEC_ID_H264: case AV_CODEC_ID_HEVC: case AV_CODEC_ID_VP8: case AV_CODEC_ID_VP9: case AV_CODEC_ID_AV1:
    case AV_CODEC_ID_MPEG4: return 1;
    default: return 0;
  }
}

static void close_format(struct catalejo_video *v) {
  avformat_close_input(&v->format);
  if (v->io) av_freep(&v->io->buffer);
  avio_context_free(&v->io);
}

void catalejo_video_close(struct catalejo_video *v) {
  if (!v) return;
  sws_freeContext(v->scaler);
  avcodec_free_context(&v->codec);
  av_packet_free(&v->packet);
  av_frame_free(&v->frame);
  close_format(v);
  av_free(v);
}

const char *catalejo_video_message(const struct catalejo_video *v) { return v->message; }

struct catalejo_video *catalejo_video_new(const uint8_t *data, int64_t size, const char *demuxer,
                                          const struct catalejo_video_limits *limits) {
  av_log_set_callback(quiet);
  av_max_alloc((size_t)limits->max_alloc);
  struct catalejo_video *v = av_mallocz(sizeof *v);
  if (!v) return NULL;
  v->data = data;
  v->size = size;
  v->demuxer = demuxer;
  v->limits = *limits;
  v->stream = -1;
  v->packet = av_packet_alloc();
  v->frame = av_frame_alloc();
  if (!v->packet || !v->frame) {
    catalejo_video_close(v);
    return NULL;
  }
  return v;
}

static int find_stream_info(struct catalejo_video *v) {
  AVFormatContext *f = v->format;
  unsigned n = f->nb_streams;
  AVDictionary **options = av_calloc(n ? n : 1, sizeof *options);
  if (!options) return AVERROR(ENOMEM);
  for (unsigned i = 0; i < n; i++) {
    av_dict_set_int(&options[i], "max_pixels", v->limits.max_pixels, 0);
    av_dict_set_int(&options[i], "threads", 1, 0);
    av_dict_set(&options[i], "codec_whitelist", CODECS, 0);
  }
  int error = avformat_find_stream_info(f, options);
  for (unsigned i = 0; i < n; i++) av_dict_free(&options[i]);
  av_free(options);
  return error;
}

/* Opens the container from its start (again, when called again) and finds the video stream: the same packets each time. */
int catalejo_video_open(struct catalejo_video *v) {
  close_format(v);
  v->at = 0;
  const AVInputFormat *demuxer = av_find_input_format(v->demuxer);
  if (!demuxer) return UNSUPPORTED;
  const int buffer_size = 32768;
  uint8_t *buffer = av_malloc((size_t)buffer_size);
  if (!buffer) return NO_MEMORY;
  v->io = avio_alloc_context(buffer, buffer_size, 0, v, io_read, NULL, io_seek);
  if (!v->io) {
    av_free(buffer);
    return NO_MEMORY;
  }
  AVFormatContext *f = v->format = avformat_alloc_context();
  if (!f) return NO_MEMORY;
  f->pb = v->io;
  f->flags |= AVFMT_FLAG_CUSTOM_IO;
  f->io_open = refuse_open;
  f->interrupt_callback.callback = stopped;
  f->interrupt_callback.opaque = v;
  f->probesize = v->limits.probe_bytes;
  f->max_probe_packets = v->limits.probe_packets;
  f->max_streams = v->limits.max_streams;
  AVDictionary *options = NULL;
  av_dict_set(&options, "format_whitelist", "mov,matroska,mpegts,avi", 0);
  av_dict_set(&options, "codec_whitelist", CODECS, 0);
  av_dict_set(&options, "protocol_whitelist", "none", 0);
  int error = avformat_open_input(&v->format, NULL, demuxer, &options);
  av_dict_free(&options);
  if (error < 0) return status_of(v, error);
  f = v->format;
  for (unsigned i = 0; i < f->nb_streams; i++) {
    const AVCodecParameters *p = f->streams[i]->codecpar;
    if (p->codec_type != AVMEDIA_TYPE_VIDEO) f->streams[i]->discard = AVDISCARD_ALL;
  }
  error = find_stream_info(v);
  if (error < 0 || stopped(v)) return status_of(v, error);
  v->stream = av_find_best_stream(f, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
  if (v->stream < 0 || f->streams[v->stream]->disposition & AV_DISPOSITION_ATTACHED_PIC) return NO_VIDEO;
  for (unsigned i = 0; i < f->nb_streams; i++)
    if ((int)i != v->stream) f->streams[i]->discard = AVDISCARD_ALL;
  const AVCodecParameters *p = f->streams[v->stream]->codecpar;
  if (!codec_allowed(p->codec_id)) {
    snprintf(v->message, sizeof v->message, "%s", avcodec_get_name(p->codec_id));
    return UNSUPPORTED;
  }
  return OK;
}

static const int32_t *display_matrix(const AVStream *s) {
#if LIBAVCODEC_VERSION_MAJOR >= 61
  const AVPacketSideData *side = av_packet_side_data_get(s->codecpar->coded_side_data, s->codecpar->nb_coded_side_data,
                                                         AV_PKT_DATA_DISPLAYMATRIX);
  return side && side->size >= 36 ? (const int32_t *)side->data : NULL;
#else
  size_t size = 0;
  const uint8_t *side = av_stream_get_side_data((AVStream *)s, AV_PKT_DATA_DISPLAYMATRIX, &size);
  return side && size >= 36 ? (const int32_t *)side : NULL;
#endif
}

void catalejo_video_describe(const struct catalejo_video *v, struct catalejo_video_info *info) {
  const AVStream *s = v->format->streams[v->stream];
  memset(info, 0, sizeof *info);
  info->width = s->codecpar->width;
  info->height = s->codecpar->height;
  info->fps_num = s->avg_frame_rate.num;
  info->fps_den = s->avg_frame_rate.den;
  info->base_num = s->time_base.num;
  info->base_den = s->time_base.den;
  const int32_t *m = display_matrix(s);
  if (!m) return;
  /* x' = m0 x + m3 y, y' = m1 x + m4 y; only right angles turn the picture. */
  if (m[0] && m[4] && !m[1] && !m[3]) {
    info->flip_x = m[0] < 0;
    info->flip_y = m[4] < 0;
  } else if (m[1] && m[3] && !m[0] && !m[4]) {
    info->transposed = 1;
    info->flip_x = m[3] < 0;
    info->flip_y = m[1] < 0;
  }
}

/* Reads the next packet of the video. */
int catalejo_video_read(struct catalejo_video *v, struct catalejo_packet_info *info) {
  for (;;) {
    av_packet_unref(v->packet);
    if (stopped(v)) return why_stopped(v);
    int error = av_read_frame(v->format, v->packet);
    if (error < 0) {
      int status = status_of(v, error);
      return status == CORRUPT || status == AGAIN ? END : status; /* a cut file ends here; what came before counts */
    }
    if (v->packet->stream_index == v->stream) break;
  }
  info->pts = v->packet->pts == AV_NOPTS_VALUE ? INT64_MIN : v->packet->pts;
  info->key = (v->packet->flags & AV_PKT_FLAG_KEY) != 0;
  info->discard = (v->packet->flags & AV_PKT_FLAG_DISCARD) != 0;
  return OK;
}

int catalejo_video_start(struct catalejo_video *v) {
  const AVStream *s = v->format->streams[v->stream];
  const AVCodec *decoder = NULL;
  if (s->codecpar->codec_id == AV_CODEC_ID_AV1) decoder = avcodec_find_decoder_by_name("libdav1d");
  if (!decoder) decoder = avcodec_find_decoder(s->codecpar->codec_id);
  if (!decoder) return UNSUPPORTED;
  avcodec_free_context(&v->codec);
  v->codec = avcodec_alloc_context3(decoder);
  if (!v->codec) return NO_MEMORY;
  int error = avcodec_parameters_to_context(v->codec, s->codecpar);
  if (error < 0) return status_of(v, error);
  v->codec->pkt_timebase = s->time_base;
  v->codec->max_pixels = v->limits.max_pixels;
  v->codec->thread_count = v->limits.threads;
  AVDictionary *options = NULL;
  av_dict_set(&options, "codec_whitelist", CODECS, 0);
  error = avcodec_open2(v->codec, decoder, &options);
  av_dict_free(&options);
  return error < 0 ? status_of(v, error) : OK;
}

void catalejo_video_flush(struct catalejo_video *v) { avcodec_flush_buffers(v->codec); }

/* Sends the packet read last as frame number `rank`. `skip`: its frame is not wanted, decode it only if others need it. */
int catalejo_video_send(struct catalejo_video *v, int64_t rank, int skip) {
  v->codec->skip_frame = skip ? AVDISCARD_NONREF : AVDISCARD_DEFAULT;
  v->packet->pts = rank;
  v->packet->dts = AV_NOPTS_VALUE;
  int error = avcodec_send_packet(v->codec, v->packet);
  return error < 0 ? status_of(v, error) : OK;
}

int catalejo_video_drain(struct catalejo_video *v) {
  int error = avcodec_send_packet(v->codec, NULL);
  return error < 0 ? status_of(v, error) : OK;
}

/* The next decoded frame: AGAIN when the decoder wants packets, END after draining. */
int catalejo_video_receive(struct catalejo_video *v, int64_t *rank, int32_t *width, int32_t *height, int32_t *damaged) {
  av_frame_unref(v->frame);
  int error = avcodec_receive_frame(v->codec, v->frame);
  if (error < 0) return status_of(v, error);
  *rank = v->frame->pts;
  *width = v->frame->width;
  *height = v->frame->height;
  *damaged = v->frame->decode_error_flags != 0 || (v->frame->flags & AV_FRAME_FLAG_CORRUPT) != 0;
  if ((int64_t)*width * *height > v->limits.max_pixels) return TOO_MANY_PIXELS;
  return OK;
}

static int matrix_of(const AVFrame *f) {
  switch (f->colorspace) {
    case AVCOL_SPC_BT709: return SWS_CS_ITU709;
    case AVCOL_SPC_FCC: return SWS_CS_FCC;
    case AVCOL_SPC_SMPTE240M: return SWS_CS_SMPTE240M;
    case AVCOL_SPC_BT2020_NCL: case AVCOL_SPC_BT2020_CL: return SWS_CS_BT2020;
    default: return SWS_CS_ITU601; /* also untagged files, as every reference decodes them */
  }
}

/* Rows `first` to `first + count` of the frame received last as RGB, its colour matrix and range honoured, its size kept:
 * all rows, or one group after the other from the top, of an even size but for the last. `written`: `count`, or fewer when
 * the rows of this pixel format need those below; then only all rows can be had. */
int catalejo_video_rgb(struct catalejo_video *v, uint8_t *out, int64_t stride, int first, int count,
                       int *written) {
  const AVFrame *f = v->frame;
  int matrix = matrix_of(f), format = f->format, full = f->color_range == AVCOL_RANGE_JPEG;
  switch (format) { /* the J formats are plain formats with full range */
    case AV_PIX_FMT_YUVJ420P: format = AV_PIX_FMT_YUV420P; full = 1; break;
    case AV_PIX_FMT_YUVJ422P: format = AV_PIX_FMT_YUV422P; full = 1; break;
    case AV_PIX_FMT_YUVJ444P: format = AV_PIX_FMT_YUV444P; full = 1; break;
    case AV_PIX_FMT_YUVJ440P: format = AV_PIX_FMT_YUV440P; full = 1; break;
  }
  if (!v->scaler || v->scaler_w != f->width || v->scaler_h != f->height || v->scaler_format != format ||
      v->scaler_matrix != matrix || v->scaler_range != full) {
    sws_freeContext(v->scaler);
    v->scaler = sws_getContext(f->width, f->height, format, f->width, f->height, AV_PIX_FMT_RGB24, SWS_BILINEAR, NULL,
                               NULL, NULL);
    if (!v->scaler) {
      snprintf(v->message, sizeof v->message, "pixel format %s", av_get_pix_fmt_name(format) ? av_get_pix_fmt_name(format) : "?");
      return UNSUPPORTED;
    }
    sws_setColorspaceDetails(v->scaler, sws_getCoefficients(matrix), full, sws_getCoefficients(SWS_CS_DEFAULT), 1, 0,
                             1 << 16, 1 << 16);
    v->scaler_w = f->width;
    v->scaler_h = f->height;
    v->scaler_format = format;
    v->scaler_matrix = matrix;
    v->scaler_range = full;
  }
  if (stride > INT_MAX) return NO_MEMORY;
  *written = 0;
  if (count != f->height && (format != AV_PIX_FMT_YUV420P || first % 2)) return OK;
  /* The library adds first * stride to where it writes, and nothing to where it reads. */
  uint8_t *planes[4] = {(uint8_t *)((uintptr_t)out - (uintptr_t)(first * stride)), NULL, NULL, NULL};
  int strides[4] = {(int)stride, 0, 0, 0};
  const uint8_t *from[4] = {f->data[0], f->data[1], f->data[2], f->data[3]};
  if (first > 0) {
    from[0] += (ptrdiff_t)first * f->linesize[0];
    for (int i = 1; i < 3; i++) from[i] += (ptrdiff_t)(first / 2) * f->linesize[i];
  }
  int rows = sws_scale(v->scaler, from, f->linesize, first, count, planes, strides);
  if (rows < 0) return status_of(v, rows);
  *written = rows;
  return OK;
}
