package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/kv/transfer"
)

func newWorkspaceBackupCommand() *cobra.Command {
	var (
		atoll     target
		file      string
		overwrite bool
	)
	cmd := &cobra.Command{
		Use:   "backup PATH -f FILE",
		Short: "Back up one workspace to a file",
		Long: `Back up the objects of one workspace, as they are at one moment, to a file that 'atoll workspace restore' restores on any
server. The workspace stays in use. You need all permissions in it. The file is checksummed, readable only by its owner, and
appears only when it is complete. Secrets in it are encrypted as the server stores them. Workspaces in the workspace are not
backed up.

` + workspacePathHelp,
		Example: `  atoll workspace backup team-a -f team-a.backup`,
		Args:    oneName("workspace"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return errors.New("no output file: set -f")
			}
			path, _, err := atoll.workspaceObject(args[0])
			if err != nil {
				return err
			}
			config, err := atoll.config()
			if err != nil {
				return err
			}
			return backUpWorkspace(cmd.Context(), config, path, file, overwrite, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&file, "file", "f", "", "File to write.")
	flags.BoolVar(&overwrite, "overwrite", false, "Replace the file if it exists.")
	atoll.addPlainFlags(flags)
	return cmd
}

func backUpWorkspace(ctx context.Context, config *rest.Config, path, file string, overwrite bool, out, progress io.Writer) error {
	meter := newMeter(progress, "back up "+path, "bytes")
	defer meter.stop()
	err := transfer.CreateFile(file, overwrite, func(w io.Writer) error {
		response, err := backupRequest(ctx, config, http.MethodGet, path, nil, nil)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.Copy(w, metered{response.Body, meter})
		return err
	})
	if err != nil {
		return fmt.Errorf("back up workspace %s: %w", path, err)
	}
	meter.stop()
	a, err := transfer.OpenArchive(ctx, file, transfer.ProgressHooks{})
	if err != nil {
		return err
	}
	for _, s := range a.Sections {
		fmt.Fprintf(out, "workspace/%s backed up to %s at revision %d: %d keys, %s\n", path, file, s.Revision, s.Keys, bytesText(s.Bytes))
	}
	return a.Close()
}

func newWorkspaceRestoreCommand() *cobra.Command {
	var (
		atoll    target
		file     string
		keyspace string
		timeout  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "restore PATH -f FILE",
		Short: "Create a workspace from a backup",
		Long: `Create a workspace with the objects of a file that 'atoll workspace backup' or 'atoll kv backup' wrote, also on another
server, and wait until it is served. You must be in the group system:masters, and get the role cluster-admin. If the file has
encrypted objects, the server needs the keys of encryption of the server that was backed up.

If a restore fails, repeat it: it goes on with the workspace that it created. Tokens of ServiceAccounts are not valid in the restored
workspace; those in Secrets are issued again.

` + workspacePathHelp,
		Example: `  atoll workspace restore team-a -f team-a.backup

  # One workspace of a backup of the whole datastore
  atoll kv restore --from all.backup --dry-run --to sqlite:///unused   # shows the keyspaces
  atoll workspace restore team-a -f all.backup --keyspace workspace-0b3a6c1e-8a55-4e0a-9d39-1b8f6f0f5d0e`,
		Args: oneName("workspace"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return errors.New("no backup file: set -f")
			}
			path, client, err := atoll.workspaceObject(args[0])
			if err != nil {
				return err
			}
			config, err := atoll.config()
			if err != nil {
				return err
			}
			uid, err := workspaceToRestore(cmd.Context(), client, path)
			if err != nil {
				return err
			}
			_, name := splitWorkspacePath(path)
			if err := sendBackup(cmd.Context(), config, path, uid, file, keyspace, cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("restore workspace %s: %w\nWorkspace %s is not complete: repeat the restore, or delete it", path, err, path)
			}
			if err := awaitWorkspace(cmd.Context(), client, name, timeout, nil); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "workspace/%s restored\n", path)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&file, "file", "f", "", "File to restore.")
	flags.StringVar(&keyspace, "keyspace", "", "Keyspace of the workspace in a file with several.")
	flags.DurationVar(&timeout, "timeout", time.Minute, "How long to wait until the restored workspace is served.")
	atoll.addPlainFlags(flags)
	return cmd
}

// workspaceToRestore creates a Workspace to restore into, and returns its UID. One of an earlier restore that failed is used again.
func workspaceToRestore(ctx context.Context, client dynamic.ResourceInterface, path string) (uid string, err error) {
	_, name := splitWorkspacePath(path)
	created, err := client.Create(ctx, &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Workspace",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"source": map[string]any{"backup": true}}}}, metav1.CreateOptions{})
	if err == nil {
		return string(created.GetUID()), nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("create workspace %s: %w", path, err)
	}
	existing, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read workspace %s: %w", path, err)
	}
	backup, _, _ := unstructured.NestedBool(existing.Object, "spec", "source", "backup")
	phase, _, _ := unstructured.NestedString(existing.Object, "status", "phase")
	if !backup || phase == string(v1alpha1.WorkspaceReady) {
		return "", fmt.Errorf("workspace %s exists: restore the backup under another name, and delete the one that you do not need", path)
	}
	return string(existing.GetUID()), nil
}

// sendBackup sends a backup to the server, which restores it.
func sendBackup(ctx context.Context, config *rest.Config, path, uid, file, keyspace string, progress io.Writer) error {
	backup, err := os.Open(file)
	if err != nil {
		return err
	}
	defer backup.Close()
	meter := newMeter(progress, "send "+file, "bytes")
	defer meter.stop()
	response, err := backupRequest(ctx, config, http.MethodPut, path, url.Values{"uid": {uid}, "keyspace": {keyspace}}, metered{backup, meter})
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// metered counts the bytes that are read.
type metered struct {
	io.Reader
	meter *meter
}

func (m metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.meter.add(int64(n), int64(n))
	return n, err
}

// maxBackupError bounds the message of a server.
const maxBackupError = 4 << 10

// backupRequest makes a request for a backup of a workspace. The caller closes the body of the response.
func backupRequest(ctx context.Context, config *rest.Config, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client.Timeout = 0
	root, _ := splitWorkspaceURL(config.Host)
	request, err := http.NewRequestWithContext(ctx, method, root+v1alpha1.BackupsPath+path+"?"+query.Encode(), body)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		defer response.Body.Close()
		message, _ := io.ReadAll(io.LimitReader(response.Body, maxBackupError))
		return nil, fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(message)))
	}
	return response, nil
}
