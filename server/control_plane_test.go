package server

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/atoll-dev/atoll/fleet"
)

// TestControlPlanesOfCopies: the ID stays with the data, whatever server opens it. A restored or copied
// keyspace has another one; a copy of the file has the same, and is another database.
func TestControlPlanesOfCopies(t *testing.T) {
	dir := t.TempDir()
	read := func(file string, use func(*Datastore)) (is fleet.ControlPlane) {
		t.Helper()
		db, err := OpenDatastore(t.Context(), SQLiteURL(filepath.Join(dir, file)))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if use != nil {
			use(db)
		}
		if is, err = db.ControlPlane(t.Context()); err != nil || is.ID == "" || is.Database == "" {
			t.Fatal(is, err)
		}
		if names, err := db.Keyspaces(t.Context()); err != nil || slices.Contains(names, controlPlaneKeyspace) {
			t.Errorf("%v, %v", names, err)
		}
		return is
	}
	first := read("first.db", nil)
	if again := read("first.db", nil); again != first {
		t.Errorf("%+v, then %+v", first, again)
	}
	if other := read("other.db", nil); other.ID == first.ID {
		t.Error("two control planes have the same ID")
	}
	copyFile(t, filepath.Join(dir, "first.db"), filepath.Join(dir, "copy.db"))
	if copied := read("copy.db", nil); copied.ID != first.ID || copied.Database == first.Database {
		t.Errorf("first %+v, copy of the file %+v", first, copied)
	}
	filling := func(keyspace string) func(*Datastore) {
		return func(db *Datastore) {
			if err := db.BeginFilling(t.Context(), keyspace, Incomplete{What: "a restore", Remedy: "again"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if same := read("first.db", filling("another")); same != first {
		t.Errorf("%+v, and after a restore of a keyspace without a control plane %+v", first, same)
	}
	if restored := read("first.db", filling(Workspace)); restored.ID == first.ID {
		t.Error("the restored control plane has the ID of the first")
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err == nil {
		_, err = io.Copy(out, in)
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}
