package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// machine describes the machine of the measurements. Figures mean little without it.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// SyncMicros is the median time of a 4 KiB append and fdatasync-like sync
	// on the disk that the stores are on. It bounds a single client's writes.
	SyncMicros float64 `json:"sync_us"`
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s memory, %s, %s, a synced 4 KiB append takes %.0f µs",
		m.CPU, m.Cores, m.Memory, m.Kernel, m.Go, m.SyncMicros)
}

func describeMachine(dir string) (machine, error) {
	m := machine{
		CPU: field("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(),
		Memory: field("/proc/meminfo", "MemTotal"), Go: runtime.Version(), Kernel: runtime.GOOS,
	}
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel += " " + strings.TrimSpace(string(raw))
	}
	var err error
	m.SyncMicros, err = syncTime(dir)
	return m, err
}

// field reads "name : value" from a file of such lines.
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func syncTime(dir string) (float64, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, fmt.Errorf("measure the disk: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var all []float64
	block := make([]byte, 4096)
	for range 200 {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, fmt.Errorf("measure the disk: %w", err)
		}
		if err := f.Sync(); err != nil {
			return 0, fmt.Errorf("measure the disk: %w", err)
		}
		all = append(all, float64(time.Since(began))/float64(time.Microsecond))
	}
	return median(all), nil
}

// residentMiB returns the resident memory of a process in MiB.
func residentMiB(pid int) (float64, error) {
	var kib float64
	value := field(fmt.Sprintf("/proc/%d/status", pid), "VmRSS")
	if _, err := fmt.Sscanf(value, "%f kB", &kib); err != nil {
		return 0, fmt.Errorf("memory of process %d: %q: %w", pid, value, err)
	}
	return kib / 1024, nil
}

// processTime returns the CPU time that a process has used.
func processTime(pid int) (time.Duration, error) { return ticksOf(pid, 2) }

// ticksOf adds up the first count of a process's CPU times: user and system time, and those of
// processes that it has waited for.
func ticksOf(pid, count int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	// The second field is the program's name in parentheses, spaces and all; the
	// 14th to 17th are the times in hundredths of a second.
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0, fmt.Errorf("processor time of process %d: %q has too few fields", pid, raw)
	}
	var ticks int64
	for _, f := range fields[11 : 11+count] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// disturbance is the CPU usage outside the measurement, in CPUs: by other programs, and
// stolen by the host for other machines.
type disturbance struct {
	Others float64 `json:"others_cpus"`
	Stolen float64 `json:"stolen_cpus"`
}

// observeMachine starts to measure disturbances. The returned function returns them, and
// the CPUs that this process and its descendants used.
func observeMachine() (end func() (own float64, d disturbance, err error), err error) {
	began := time.Now()
	busy, stolen, err := machineTime()
	if err != nil {
		return nil, err
	}
	used, err := treeTime(os.Getpid())
	if err != nil {
		return nil, err
	}
	return func() (own float64, d disturbance, err error) {
		seconds := time.Since(began).Seconds()
		busyThen, stolenThen, err := machineTime()
		if err != nil {
			return 0, d, err
		}
		usedThen, err := treeTime(os.Getpid())
		if err != nil {
			return 0, d, err
		}
		own = (usedThen - used).Seconds() / seconds
		d.Others = max(0, (busyThen-busy).Seconds()/seconds-own)
		d.Stolen = (stolenThen - stolen).Seconds() / seconds
		return own, d, nil
	}, nil
}

// machineTime returns the busy and the stolen time of all CPUs since the machine started.
func machineTime() (busy, stolen time.Duration, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("processor time of the machine: %w", err)
	}
	// cpu user nice system idle iowait irq softirq steal …, in hundredths of a second
	line, _, _ := strings.Cut(string(raw), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0, 0, fmt.Errorf("processor time of the machine: %q has too few fields", line)
	}
	for i, field := range fields[1:9] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("processor time of the machine: %w", err)
		}
		switch t := time.Duration(ticks) * 10 * time.Millisecond; i {
		case 3, 4: // idle
		case 7:
			stolen = t
		default:
			busy += t
		}
	}
	return busy, stolen, nil
}

// settleDisk waits until earlier writes are on the disk. Otherwise the next system would
// pay for the previous one's dirty pages. Without a sync command, figures only vary more.
func settleDisk() { _ = exec.Command("sync").Run() }
