package changes

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
)

// streamBuffer is how much of a stream is written at a time.
const streamBuffer = 64 << 10

// stream answers with all changes, one on each line. What goes wrong on the way is on the last.
func stream(ctx context.Context, w http.ResponseWriter, walk *walk) {
	w.Header().Set("Content-Type", Lines)
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
			return errGone
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
	// Who asked may be gone, and there is nobody else to tell.
	_ = flush()
}
