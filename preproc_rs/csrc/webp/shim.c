/* One lossy WebP without alpha through the second build of libwebp's decoder: rows leave as YUV 4:2:0 while they are in
 * the cache, before libwebp would turn them into RGB. */

#include <stddef.h>
#include <stdint.h>

#include "src/dec/vp8_dec.h"
#include "src/dec/vp8i_dec.h"
#include "src/dec/webpi_dec.h"

/* `rows` luma rows from row `y` (even) on, and (rows + 1) / 2 rows of each chroma plane. 0 stops the decoder. */
typedef int (*take_rows)(void *user, int y, int rows, const uint8_t *luma, const uint8_t *u, const uint8_t *v,
                         int luma_stride, int chroma_stride);

struct request {
  int width, height;
  take_rows take;
  void *user;
};

static int setup(VP8Io *io) {
  const struct request *r = io->opaque;
  return io->width == r->width && io->height == r->height;
}

static int put(const VP8Io *io) {
  const struct request *r = io->opaque;
  return r->take(r->user, io->mb_y, io->mb_h, io->y, io->u, io->v, io->y_stride, io->uv_stride);
}

/* The whole file in `data`; a VP8StatusCode. VP8_STATUS_USER_ABORT: another size than announced, or `take` said 0. */
int catalejo_webp_decode(const uint8_t *data, size_t size, int width, int height, take_rows take, void *user) {
  WebPHeaderStructure headers = {.data = data, .data_size = size, .have_all_data = 1};
  const VP8StatusCode status = WebPParseHeaders(&headers);
  if (status != VP8_STATUS_OK) return status;
  if (headers.is_lossless || headers.alpha_data != NULL) return VP8_STATUS_UNSUPPORTED_FEATURE;
  struct request request = {width, height, take, user};
  VP8Io io;
  if (!VP8InitIo(&io)) return VP8_STATUS_INVALID_PARAM;
  io.data = headers.data + headers.offset;
  io.data_size = headers.data_size - headers.offset;
  io.opaque = &request;
  io.setup = setup;
  io.put = put;
  VP8Decoder *const decoder = VP8New();
  if (decoder == NULL) return VP8_STATUS_OUT_OF_MEMORY;
  VP8StatusCode result = VP8_STATUS_OK;
  if (!VP8GetHeaders(decoder, &io) || !VP8Decode(decoder, &io)) result = VP8Status(decoder);
  VP8Delete(decoder);
  return result;
}
