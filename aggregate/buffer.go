package aggregate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"strconv"
)

// bufferedResponse buffers a response of the next handler, so that it can be changed.
type bufferedResponse struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (k *bufferedResponse) Header() http.Header { return k.header }

func (k *bufferedResponse) WriteHeader(code int) {
	// 1xx responses precede the final one.
	if k.code == 0 && code >= http.StatusOK {
		k.code = code
	}
}

func (k *bufferedResponse) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(p)
}

// fetch makes the next handler answer a request in the given encoding, in full.
func (h *Handler) fetch(in *http.Request, accept, etag string) *bufferedResponse {
	asked := in.WithContext(in.Context())
	asked.Header = in.Header.Clone()
	asked.Header.Set("Accept", accept)
	// The handler reads this response itself. Conditional headers refer to the client's
	// copy, which the next handler does not know.
	for _, name := range []string{"Accept-Encoding", "If-None-Match", "If-Modified-Since", "Range", "If-Range"} {
		asked.Header.Del(name)
	}
	if etag != "" {
		asked.Header.Set("If-None-Match", etag)
	}
	k := &bufferedResponse{header: http.Header{}}
	suppressCacheControl(k.header)
	h.next.ServeHTTP(k, asked)
	k.WriteHeader(http.StatusOK)
	return k
}

// copyTo writes the response unchanged.
func (k *bufferedResponse) copyTo(w http.ResponseWriter) {
	maps.Copy(w.Header(), k.header)
	w.WriteHeader(k.code)
	_, _ = w.Write(k.body.Bytes()) // the client is gone if this fails
}

// copyWithBody writes the response with another body.
func (k *bufferedResponse) copyWithBody(w http.ResponseWriter, mediaType string, body []byte) {
	maps.Copy(w.Header(), k.header)
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(k.code)
	_, _ = w.Write(body)
}

// writeDocument writes a document that clients poll and that rarely changes.
func writeDocument(w http.ResponseWriter, r *http.Request, mediaType string, body []byte) {
	sum := sha256.Sum256(body)
	etag := strconv.Quote(hex.EncodeToString(sum[:]))
	w.Header().Set("ETag", etag)
	w.Header().Set("Vary", "Accept")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client is gone if this fails
}
