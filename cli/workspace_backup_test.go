package cli

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv/transfer"
)

// TestWorkspaceBackupCommands: a backup that the server does not end leaves no file. A restore sends the file, and its error says why.
func TestWorkspaceBackupCommands(t *testing.T) {
	var whole bytes.Buffer
	if _, err := transfer.Backup(t.Context(), &whole, nil, transfer.BackupOptions{}); err != nil {
		t.Fatal(err)
	}
	aborts := true
	var sent, query string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != v1alpha1.BackupsPath+"team-a:staging" {
			t.Errorf("path %s", r.URL.Path)
		}
		if r.Method == http.MethodPut {
			body, _ := io.ReadAll(r.Body)
			sent, query = string(body), r.URL.RawQuery
			http.Error(w, "this server lacks the key", http.StatusUnprocessableEntity)
			return
		}
		if aborts {
			_, _ = w.Write(whole.Bytes()[:whole.Len()/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(whole.Bytes())
	}))
	defer server.Close()
	config, file := &rest.Config{Host: server.URL + "/clusters/team-a"}, filepath.Join(t.TempDir(), "backup")
	back := func() error {
		return backUpWorkspace(t.Context(), config, "team-a:staging", file, false, io.Discard, io.Discard)
	}
	if err := back(); err == nil {
		t.Error("a backup that is not complete is no error")
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("it left a file")
	}
	aborts = false
	if err := back(); err != nil {
		t.Fatal(err)
	}
	if err := back(); err == nil || !strings.Contains(err.Error(), "--overwrite") {
		t.Errorf("the file exists: %v", err)
	}
	err := sendBackup(t.Context(), config, "team-a:staging", "uid", file, "", io.Discard)
	if err == nil || !strings.Contains(err.Error(), "this server lacks the key") {
		t.Errorf("the server refuses: %v", err)
	}
	if sent != whole.String() || query != "keyspace=&uid=uid" {
		t.Errorf("sent %d bytes, query %s", len(sent), query)
	}
}
