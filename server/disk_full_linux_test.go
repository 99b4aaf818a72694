package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

// smallDisk mounts a file system of that many MiB.
func smallDisk(t *testing.T, size int) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-small-") // unlike t.TempDir, its parents allow traversal by other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=777", size)); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill leaves less than a page free.
func fill(t *testing.T, dir string) (filler string) {
	t.Helper()
	filler = filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			return filler
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk: writes to a full disk fail with a status and a message of their own, reads go on, /readyz names the
// cause, and all of it ends as soon as there is space.
func TestFullDisk(t *testing.T) {
	for _, database := range []string{"SQLite", "PostgreSQL"} {
		t.Run(database, func(t *testing.T) {
			disk := smallDisk(t, 48)
			cfg := server.Config{DataDir: t.TempDir(), WithoutWorkloadAPIs: true}
			if database == "SQLite" {
				cfg.Datastore = server.SQLiteURL(filepath.Join(disk, "atoll.db"))
			} else {
				cfg.Datastore = onTablespace(t, disk)
			}
			a := newServer(t, cfg)
			stopped := false
			defer func() {
				if !stopped {
					_ = a.stop()
				}
			}()
			secrets := a.client(t).CoreV1().Secrets("default")
			write := func(ctx context.Context, name string, size int) error {
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"filler": make([]byte, size)}}
				_, err := secrets.Create(ctx, secret, metav1.CreateOptions{})
				return err
			}
			put := func(ctx context.Context, name string) error { return write(ctx, name, 100<<10) }
			if err := put(t.Context(), "before"); err != nil {
				t.Fatal(err)
			}
			filler := fill(t, disk)
			acknowledged := 1
			var full error
			for i := range 1000 { // the database has free pages of its own
				if full = put(t.Context(), fmt.Sprint("more-", i)); full != nil {
					break
				}
				acknowledged++
			}
			var status *apierrors.StatusError
			if !errors.As(full, &status) || status.ErrStatus.Code != http.StatusInsufficientStorage || !strings.Contains(full.Error(), "full") {
				t.Fatalf("a write to a full disk: %v", full)
			}
			readyz := func(ctx context.Context) (int, string) {
				code := 0
				body, _ := a.client(t).Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").Do(ctx).StatusCode(&code).Raw()
				return code, string(body)
			}
			// A smaller write, such as that of a lease, may still find room, and then the server is ready.
			small := 0
			eventually(t, "the server is not ready", func(ctx context.Context) error {
				small++
				if err := write(ctx, fmt.Sprint("small-", small), 1<<10); err == nil {
					acknowledged++
				}
				if code, body := readyz(ctx); code != http.StatusInternalServerError || !strings.Contains(body, "[-]disk-space failed: the disk of this server's datastore is full") {
					return fmt.Errorf("/readyz: %d %s", code, body)
				}
				return nil
			})
			if all, err := secrets.List(t.Context(), metav1.ListOptions{}); err != nil || len(all.Items) != acknowledged {
				t.Errorf("%d Secrets on a full disk, want %d: %v", len(all.Items), acknowledged, err)
			}
			if code := 0; a.client(t).Discovery().RESTClient().Get().AbsPath("/livez").Do(t.Context()).StatusCode(&code).Error() != nil || code != http.StatusOK {
				t.Errorf("/livez: %d", code)
			}
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the server is ready again", func(ctx context.Context) error {
				if code, body := readyz(ctx); code != http.StatusOK {
					return fmt.Errorf("%d %s", code, body)
				}
				return nil
			})
			if err := put(t.Context(), "after"); err != nil {
				t.Error(err)
			}
			err := a.stop()
			stopped = true
			if err != nil {
				t.Fatal(err)
			}
			a = newServer(t, cfg)
			stopped = false
			all, err := a.client(t).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(all.Items) != acknowledged+1 {
				t.Errorf("%d Secrets after a restart, want %d: %v", len(all.Items), acknowledged+1, err)
			}
		})
	}
}

// onTablespace returns the URL of a PostgreSQL database whose tables are in a directory.
func onTablespace(t *testing.T, disk string) string {
	t.Helper()
	files, err := os.MkdirTemp("", "atoll-postgres-") // see smallDisk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(files) })
	db, err := postgres.Start(t.Context(), postgres.Config{Dir: files})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Stop() })
	dir := filepath.Join(disk, "tablespace")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	owner, err := os.Stat(files)
	if err != nil {
		t.Fatal(err)
	}
	if stat := owner.Sys().(*syscall.Stat_t); os.Chown(dir, int(stat.Uid), int(stat.Gid)) != nil {
		t.Fatal("the tablespace cannot be given to PostgreSQL")
	}
	for _, sql := range []string{"CREATE TABLESPACE small LOCATION '" + dir + "'", "CREATE DATABASE small TABLESPACE small"} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Replace(db.URL(), "/postgres?", "/small?", 1)
}
