/* One coded picture (HEVC or AV1, without its container) through libavcodec: planes of samples out.
 *
 * The caller says how large the picture is. The decoder learns it as its limit, and memory for a frame of another size or
 * of a pixel format without planes is refused before it is taken. */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <libavcodec/avcodec.h>
#include <libavutil/log.h>
#include <libavutil/mem.h>
#include <libavutil/pixdesc.h>

enum status { OK = 0, CORRUPT = 1, UNSUPPORTED = 2, NO_MEMORY = 3, SIZE = 4, NO_DECODER = 5 };

struct catalejo_still {
  AVCodecContext *codec;
  AVPacket *packet;
  AVFrame *frame;
  int width, height;
  int refused; /* why memory for a frame was refused */
};

struct catalejo_still_frame {
  const uint8_t *planes[3]; /* one when there is no colour */
  int64_t strides[3];       /* in bytes */
  int32_t bits;             /* of a sample; above 8 it takes 2 bytes */
  int32_t colours;          /* planes beside the first */
  int32_t shift_x, shift_y; /* of the colour planes */
  int32_t full_range, matrix;
};

static const AVPixFmtDescriptor *usable(int format) {
  const AVPixFmtDescriptor *d = av_pix_fmt_desc_get(format);
  if (!d || d->flags & (AV_PIX_FMT_FLAG_HWACCEL | AV_PIX_FMT_FLAG_BE | AV_PIX_FMT_FLAG_PAL | AV_PIX_FMT_FLAG_BITSTREAM)) return NULL;
  if (d->nb_components != 1 && !(d->nb_components == 3 && d->flags & AV_PIX_FMT_FLAG_PLANAR)) return NULL;
  for (int i = 0; i < d->nb_components; i++)
    if (d->comp[i].plane != i || d->comp[i].shift || d->comp[i].depth != d->comp[0].depth ||
        d->comp[i].step != (d->comp[0].depth > 8 ? 2 : 1))
      return NULL;
  /* Planes of GBR are in another order. */
  return d->flags & AV_PIX_FMT_FLAG_RGB ? NULL : d;
}

static int get_buffer(AVCodecContext *c, AVFrame *f, int flags) {
  struct catalejo_still *s = c->opaque;
  /* Decoders ask for whole blocks: at most 128 samples each. */
  if (f->width > s->width + 128 || f->height > s->height + 128) {
    s->refused = SIZE;
    return AVERROR(EINVAL);
  }
  if (!usable(f->format)) {
    s->refused = UNSUPPORTED;
    return AVERROR(EINVAL);
  }
  return avcodec_default_get_buffer2(c, f, flags);
}

void catalejo_still_close(struct catalejo_still *s) {
  if (!s) return;
  avcodec_free_context(&s->codec);
  av_packet_free(&s->packet);
  av_frame_free(&s->frame);
  av_free(s);
}

/* `config`: "hvcC" of HEVC; AV1 needs none. NULL: no memory, or `*status` says what else. */
struct catalejo_still *catalejo_still_open(int av1, const uint8_t *config, size_t config_size, int width, int height,
                                           size_t max_alloc, int *status) {
  av_log_set_level(AV_LOG_QUIET);
  av_max_alloc(max_alloc);
  *status = NO_DECODER;
  const AVCodec *decoder = avcodec_find_decoder_by_name(av1 ? "libdav1d" : "hevc");
  if (!decoder) return NULL;
  *status = NO_MEMORY;
  struct catalejo_still *s = av_mallocz(sizeof *s);
  if (!s) return NULL;
  s->width = width;
  s->height = height;
  s->packet = av_packet_alloc();
  s->frame = av_frame_alloc();
  s->codec = avcodec_alloc_context3(decoder);
  uint8_t *extra = config_size ? av_mallocz(config_size + AV_INPUT_BUFFER_PADDING_SIZE) : NULL;
  if (!s->packet || !s->frame || !s->codec || (config_size && !extra)) {
    av_free(extra);
    catalejo_still_close(s);
    return NULL;
  }
  if (config_size) memcpy(extra, config, config_size);
  s->codec->extradata = extra; /* freed with the context */
  s->codec->extradata_size = (int)config_size;
  s->codec->opaque = s;
  s->codec->get_buffer2 = get_buffer;
  s->codec->max_pixels = (int64_t)(width + 128) * (height + 128);
  s->codec->thread_count = 1;
  s->codec->err_recognition = AV_EF_BITSTREAM | AV_EF_BUFFER | AV_EF_EXPLODE;
  const int error = avcodec_open2(s->codec, decoder, NULL);
  if (error < 0) {
    *status = error == AVERROR(ENOMEM) ? NO_MEMORY : CORRUPT;
    catalejo_still_close(s);
    return NULL;
  }
  *status = OK;
  return s;
}

static int status_of(const struct catalejo_still *s, int error) {
  if (s->refused) return s->refused;
  if (error == AVERROR(ENOMEM)) return NO_MEMORY;
  return error == AVERROR_PATCHWELCOME || error == AVERROR(ENOSYS) ? UNSUPPORTED : CORRUPT;
}

/* The first picture in `data`, which is copied. What `out` points to is good until the next call with this handle. */
int catalejo_still_decode(struct catalejo_still *s, const uint8_t *data, size_t size, struct catalejo_still_frame *out) {
  s->refused = 0;
  av_frame_unref(s->frame);
  avcodec_flush_buffers(s->codec);
  if (size > INT32_MAX - AV_INPUT_BUFFER_PADDING_SIZE || av_new_packet(s->packet, (int)size) < 0) return NO_MEMORY;
  memcpy(s->packet->data, data, size);
  s->packet->flags |= AV_PKT_FLAG_KEY;
  int error = avcodec_send_packet(s->codec, s->packet);
  av_packet_unref(s->packet);
  if (error < 0) return status_of(s, error);
  error = avcodec_receive_frame(s->codec, s->frame);
  if (error == AVERROR(EAGAIN)) {
    error = avcodec_send_packet(s->codec, NULL);
    if (error >= 0) error = avcodec_receive_frame(s->codec, s->frame);
  }
  if (error < 0) return status_of(s, error);
  const AVFrame *f = s->frame;
  if (f->width != s->width || f->height != s->height) return SIZE;
  if (f->decode_error_flags || f->flags & AV_FRAME_FLAG_CORRUPT) return CORRUPT;
  const AVPixFmtDescriptor *d = usable(f->format);
  if (!d) return UNSUPPORTED;
  memset(out, 0, sizeof *out);
  for (int i = 0; i < d->nb_components; i++) {
    if (f->linesize[i] <= 0) return UNSUPPORTED;
    out->planes[i] = f->data[i];
    out->strides[i] = f->linesize[i];
  }
  out->bits = d->comp[0].depth;
  out->colours = d->nb_components - 1;
  out->shift_x = out->colours ? d->log2_chroma_w : 0;
  out->shift_y = out->colours ? d->log2_chroma_h : 0;
  out->full_range = f->color_range == AVCOL_RANGE_JPEG || f->format == AV_PIX_FMT_YUVJ420P ||
                    f->format == AV_PIX_FMT_YUVJ422P || f->format == AV_PIX_FMT_YUVJ444P;
  out->matrix = f->colorspace;
  return OK;
}
