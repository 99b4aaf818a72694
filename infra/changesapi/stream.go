package changesapi

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
)

// streamBuffer is the size of the write buffer.
const streamBuffer = 64 << 10

// stream writes all changes, one per line. An error becomes the last line.
func stream(ctx context.Context, w http.ResponseWriter, walk *changeReader) {
	w.Header().Set("Content-Type", StreamMediaType)
	control := http.NewResponseController(w)
	out := bufio.NewWriterSize(w, streamBuffer)
	var failed error
	line := func(text []byte, err error) bool {
		if err == nil {
			_, err = out.Write(append(text, '\n'))
		}
		failed = err
		return err == nil
	}
	flush := func() error {
		if ctx.Err() != nil || out.Flush() != nil || control.Flush() != nil {
			return errClientGone
		}
		return nil
	}
	err := walk.each(ctx, func(change []byte) bool { return line(change, nil) }, flush)
	if err == nil {
		err = failed
	}
	if err != nil {
		line(json.Marshal(statusOf(err)))
	}
	// The client may be gone, and there is no one else to report this to.
	_ = flush()
}
