package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/server"
)

func newKeysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "List and rotate the keys of servers",
		Long: `List and rotate the keys of servers: the certificate authority, the key that signs the
tokens of service accounts, the key of encryption at rest, and the token of servers that share a
datastore.`,
		Args: cobra.ArbitraryArgs,
		RunE: onlySubcommands,
	}
	cmd.AddCommand(newKeysListCommand(), newKeysRotateCommand(), newKeysForgetCommand())
	return cmd
}

// keysOptions are the options of all commands about keys.
type keysOptions struct {
	place  server.KeyPlace
	dryRun bool
}

func (o *keysOptions) addFlags(cmd *cobra.Command, changes bool) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.place.DataDir, "data-dir", "", "Data directory of a server on SQLite. The default is "+defaultDataDir()+" if no datastore is named.")
	addDatastoreFlag(flags, &o.place.Datastore)
	flags.StringVar(&o.place.TokenFile, "token-file", "", "File with the token of the servers that share the datastore, such as DATA_DIR/token of one of them.")
	if changes {
		flags.BoolVar(&o.dryRun, "dry-run", false, "Show the result without changing anything.")
	}
}

func (o *keysOptions) complete() error {
	if o.place.Datastore != "" && o.place.DataDir != "" {
		return errors.New("--data-dir and --datastore are mutually exclusive: the keys of servers that share a datastore are there")
	}
	if o.place.DataDir == "" {
		if o.place.Datastore = orEnvironment(o.place.Datastore); o.place.Datastore == "" {
			o.place.DataDir = defaultDataDir()
		}
	}
	if o.place.DataDir != "" && o.place.TokenFile != "" {
		return errors.New("--token-file requires --datastore")
	}
	return nil
}

func (o *keysOptions) change(ctx context.Context, change server.KeyChange) ([]server.Key, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	return server.ChangeKeys(ctx, o.place, change, time.Now(), o.dryRun)
}

func (o *keysOptions) suffix() string {
	if o.dryRun {
		return " (dry run)"
	}
	return ""
}

func newKeysListCommand() *cobra.Command {
	var opts keysOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the keys of servers",
		Long: `List the certificate authority, the key of service accounts and the key of encryption at
rest, and the former ones that are still accepted. The keys themselves are not printed. The fingerprint
of a key of encryption is its name in the values that are encrypted with it.`,
		Example: `  atoll keys list --data-dir /var/lib/atoll
  atoll keys list --datastore "$ATOLL_DATASTORE" --token-file /var/lib/atoll/token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.dryRun = true
			keys, err := opts.change(cmd.Context(), server.KeyChange{})
			if err != nil {
				return err
			}
			return printKeys(cmd.OutOrStdout(), keys)
		},
	}
	opts.addFlags(cmd, false)
	return cmd
}

// printKeys prints a table.
func printKeys(out io.Writer, keys []server.Key) error {
	w := newTable(out)
	fmt.Fprintln(w, "NAME\tSTATE\tFINGERPRINT\tEXPIRES")
	for _, k := range keys {
		state, expires := "current", "<none>"
		if k.Former {
			state = "former"
		}
		if !k.Until.IsZero() {
			expires = k.Until.UTC().Format(time.DateOnly)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", k.Name, state, k.Fingerprint, expires)
	}
	return w.Flush()
}

// rotatable are the arguments of rotate.
var rotatable = []string{server.KeyAuthority, server.KeyServiceAccounts, server.KeyEncryption, "token"}

func newKeysRotateCommand() *cobra.Command {
	var opts keysOptions
	var newToken string
	cmd := &cobra.Command{
		Use:   "rotate (authority | service-accounts | encryption | token)...",
		Short: "Replace keys of servers",
		Long: `Replace the certificate authority, the key of service accounts, the key of encryption at rest, or
the token of servers that share a datastore.

Certificates and tokens that the former key signed stay valid until "atoll keys forget", and clients that
know only the former authority accept servers that already use the new one. So servers can be restarted one
after the other.

Servers use new keys from their next start, and a new key of encryption within half a minute. The leading
server then encrypts all that is stored with it. The former key still decrypts what was encrypted with it.`,
		Example: `  # A server on SQLite
  atoll keys rotate authority service-accounts --data-dir /var/lib/atoll

  # The key of encryption at rest
  atoll keys rotate encryption --data-dir /var/lib/atoll

  # Servers that share a datastore
  atoll keys rotate authority --datastore "$ATOLL_DATASTORE" --token-file /var/lib/atoll/token

  # Their token
  openssl rand -hex 16 > token.new
  atoll keys rotate token --datastore "$ATOLL_DATASTORE" --token-file /var/lib/atoll/token --new-token-file token.new`,
		Args:      rotatableKeys,
		ValidArgs: rotatable,
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.rotate(cmd.Context(), cmd.OutOrStdout(), args, newToken)
		},
	}
	opts.addFlags(cmd, true)
	cmd.Flags().StringVar(&newToken, "new-token-file", "", "File with the new token: at least 16 characters, such as the output of `openssl rand -hex 16`.")
	return cmd
}

func rotatableKeys(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("name what to rotate: " + strings.Join(rotatable, ", "))
	}
	for _, arg := range args {
		if !slices.Contains(rotatable, arg) {
			return fmt.Errorf("%q cannot be rotated: name one or more of %s", arg, strings.Join(rotatable, ", "))
		}
	}
	return nil
}

func (o *keysOptions) rotate(ctx context.Context, out io.Writer, args []string, newToken string) error {
	change := server.KeyChange{NewTokenFile: newToken}
	token := false
	for _, arg := range args {
		switch arg {
		case server.KeyAuthority:
			change.Authority = true
		case server.KeyServiceAccounts:
			change.ServiceAccounts = true
		case server.KeyEncryption:
			change.Encryption = true
		default:
			token = true
		}
	}
	if token != (newToken != "") {
		return errors.New("rotate token requires --new-token-file, and only that uses it")
	}
	keys, err := o.change(ctx, change)
	if err != nil {
		return err
	}
	for _, arg := range args {
		fmt.Fprintf(out, "%s rotated%s\n", arg, o.suffix())
	}
	fmt.Fprintln(out)
	if err := printKeys(out, keys); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if token {
		fmt.Fprintln(out, "Now copy the new token to DATA_DIR/token of every server: the next start needs it. Running servers go on.")
	}
	if change.Encryption {
		fmt.Fprintln(out, "Running servers use the new key of encryption within half a minute, and encrypt all stored objects again: see the metric atoll_encryption_complete. "+
			"Copy the new pki/encryption.keys to where you keep backups of keys. When the former key is no longer used, run: atoll keys forget")
	}
	if change.Authority || change.ServiceAccounts {
		fmt.Fprintln(out, "Now restart the servers, one after the other, and hand out new kubeconfigs and tokens. When the former ones are no longer used, run: atoll keys forget")
	}
	return nil
}

func newKeysForgetCommand() *cobra.Command {
	var opts keysOptions
	cmd := &cobra.Command{
		Use:   "forget",
		Short: "No longer accept former keys",
		Long: `No longer accept the certificates and tokens that former keys have signed. Kubeconfigs and
tokens from before the rotation then stop working, and so do syncers in mode Pull that have not renewed
their certificate.

Former keys of encryption at rest are kept while anything is encrypted with them, past versions of
objects included, and in the first five minutes after a rotation. Backups from before need them: keep
a copy of DATA_DIR/pki/encryption.keys as long as such a backup.

Servers forget the keys at their next start.`,
		Example: `  atoll keys forget --data-dir /var/lib/atoll
  atoll keys forget --datastore "$ATOLL_DATASTORE" --token-file /var/lib/atoll/token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			keys, err := opts.change(cmd.Context(), server.KeyChange{Forget: true})
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "former keys forgotten%s\n\n", opts.suffix())
			if err := printKeys(out, keys); err != nil {
				return err
			}
			printKept(out, keys)
			fmt.Fprintln(out, "\nNow restart the servers.")
			return nil
		},
	}
	opts.addFlags(cmd, true)
	return cmd
}

// maxNeeds is how many kinds of values the command lists for a key.
const maxNeeds = 20

// printKept prints why former keys of encryption are kept, and the values that need them.
func printKept(out io.Writer, keys []server.Key) {
	for _, k := range keys {
		if k.Name != server.KeyEncryption || !k.Former {
			continue
		}
		fmt.Fprintf(out, "\nThe key of encryption %s is kept: %s", k.Fingerprint, cmp.Or(k.Kept, "something may still be encrypted with it"))
		if len(k.Needs) == 0 {
			fmt.Fprintln(out, ". Run the command again later.")
			continue
		}
		fmt.Fprintln(out, ":")
		table := newTable(out)
		fmt.Fprintln(table, "WORKSPACE\tRESOURCE\tOBJECTS\tPAST VERSIONS")
		for _, need := range k.Needs[:min(len(k.Needs), maxNeeds)] {
			workspace := cmp.Or(need.Workspace, rootWorkspace)
			if need.Keyspace != "" {
				workspace = "<unknown> (keyspace " + need.Keyspace + ")"
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\n", workspace, cellText(need.Resource), need.Values, need.Past)
		}
		_ = table.Flush() // as all writes here
		if more := len(k.Needs) - maxNeeds; more > 0 {
			fmt.Fprintf(out, "and %d more\n", more)
		}
		fmt.Fprintln(out, "A running server encrypts objects with the present key, and atoll_encryption_complete is 1 when it is done. Past versions disappear when the history is compacted. Run the command again then.")
	}
}
