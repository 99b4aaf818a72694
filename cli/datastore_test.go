package cli_test

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-dev/atoll/cli"
)

// TestDatastoreVariable checks that every command with --datastore also reads
// $ATOLL_DATASTORE, and documents it.
func TestDatastoreVariable(t *testing.T) {
	t.Setenv(cli.DatastoreVariable, "sqlite:///nowhere/kv.db")
	found := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "datastore" {
				return
			}
			found++
			if !strings.Contains(f.Usage, "$"+cli.DatastoreVariable) {
				t.Errorf("help of %s --datastore does not mention $%s", cmd.CommandPath(), cli.DatastoreVariable)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(cli.New("atoll"))
	if found < 5 {
		t.Errorf("only %d commands with --datastore: does this test still look at the right flag?", found)
	}
	mustFail(t, "/nowhere/kv.db", "split", "--prefix", "/a/")
	mustFail(t, "/nowhere/kv.db", "merge", "--prefix", "/a/")
}
