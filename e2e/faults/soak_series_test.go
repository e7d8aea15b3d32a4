package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A soakSample is what a process uses at a moment.
type soakSample struct {
	At      time.Duration // since the soak began
	Process string
	Life    int // of its slot

	Memory, Heap, Goroutines, Connections, Files int // memory in kilobytes
}

// soakMeasures are what a picture shows. A process grows whose median rises by more than half and this much.
var soakMeasures = []struct {
	name  string
	of    func(soakSample) int
	grows int
}{
	{"memory (MB, resident)", func(s soakSample) int { return s.Memory / 1024 }, 10},
	{"heap (MB)", func(s soakSample) int { return s.Heap / 1024 }, 10},
	{"goroutines", func(s soakSample) int { return s.Goroutines }, 50},
	{"connections", func(s soakSample) int { return s.Connections }, 20},
	{"open files", func(s soakSample) int { return s.Files }, 20},
}

// growsAfter is how long a soak lasts at least that shows whether something grows.
const growsAfter = 30 * time.Minute

// sample looks at the processes that are spared, every five seconds until ctx ends.
func (s *soak) sample(ctx context.Context) {
	for ctx.Err() == nil {
		wait(ctx, 5*time.Second)
		for _, c := range s.slots {
			if sample, ok := c.use(); ok {
				s.mu.Lock()
				s.series = append(s.series, sample)
				s.mu.Unlock()
			}
		}
	}
}

// use is what the process of a slot uses. It reports false if that is not known.
func (c *soakSlot) use() (sample soakSample, ok bool) {
	if !c.spared {
		return sample, false
	}
	c.lock.Lock()
	p, life := c.process, c.lives
	c.lock.Unlock()
	if p == nil {
		return sample, false
	}
	sample = soakSample{At: time.Since(c.began), Process: c.String(), Life: life}
	var status soakStatus
	text, err := os.ReadFile(c.status())
	if err != nil || json.Unmarshal(text, &status) != nil {
		return sample, false
	}
	sample.Goroutines, sample.Heap = status.Goroutines, int(status.Heap/1024)
	proc := filepath.Join("/proc", strconv.Itoa(p.Pid()))
	statm, err := os.ReadFile(filepath.Join(proc, "statm"))
	if err != nil {
		return sample, false
	}
	if fields := strings.Fields(string(statm)); len(fields) > 1 {
		pages, _ := strconv.Atoi(fields[1]) // else zero
		sample.Memory = pages * os.Getpagesize() / 1024
	}
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return sample, false
	}
	sample.Files = len(files)
	for _, f := range files {
		if to, err := os.Readlink(filepath.Join(proc, "fd", f.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			sample.Connections++
		}
	}
	return sample, true
}

// printSeries writes the series and a picture of it, and prints for each process what it used: the median of a third
// after it had warmed up, and of the last third. In a long soak these must be alike.
func (s *soak) printSeries(to *strings.Builder) {
	s.Helper()
	var csv strings.Builder
	fmt.Fprintln(&csv, "seconds,process,life,memory_kb,heap_kb,goroutines,connections,files")
	of := map[string][]soakSample{}
	var names []string
	for _, x := range s.series {
		fmt.Fprintf(&csv, "%.0f,%q,%d,%d,%d,%d,%d,%d\n", x.At.Seconds(), x.Process, x.Life, x.Memory, x.Heap,
			x.Goroutines, x.Connections, x.Files)
		if of[x.Process] == nil {
			names = append(names, x.Process)
		}
		of[x.Process] = append(of[x.Process], x)
	}
	slices.Sort(names)
	warm := s.length / 6
	fmt.Fprintf(to, "\nmedians from %v to %v, and of the last third:\n%-50s", warm, s.length/2, "process")
	for _, m := range soakMeasures {
		fmt.Fprintf(to, " %22s", m.name)
	}
	for _, name := range names {
		fmt.Fprintf(to, "\n%-50s", name)
		for _, m := range soakMeasures {
			var early, late []int
			for _, x := range of[name] {
				switch {
				case x.At > s.length*2/3:
					late = append(late, m.of(x))
				case x.At > warm && x.At <= s.length/2:
					early = append(early, m.of(x))
				}
			}
			from, now := middle(early), middle(late)
			fmt.Fprintf(to, " %22s", fmt.Sprintf("%d → %d", from, now))
			if s.length >= growsAfter && now > from*3/2+m.grows {
				s.Errorf("%s: %s: %d → %d: it grows", name, m.name, from, now)
			}
		}
	}
	fmt.Fprintln(to)
	for name, text := range map[string]string{"soak.csv": csv.String(), "soak.svg": s.draw(names, of)} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
			s.Error(err)
		}
	}
}

// middle is the median; 0 of none.
func middle(of []int) int {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[len(of)/2]
}

// draw draws a curve for each process, and a panel for each measure.
func (s *soak) draw(names []string, of map[string][]soakSample) string {
	const width, height, left, top = 760, 150, 60, 30
	colors := []string{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2"}
	var svg strings.Builder
	total := top + len(soakMeasures)*(height+50) + len(names)*18
	line := func(format string, args ...any) { fmt.Fprintf(&svg, format+"\n", args...) }
	line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`,
		left+width+30, total)
	line(`<rect width="100%%" height="100%%" fill="white"/>`)
	y := top
	for _, m := range soakMeasures {
		most := 1
		for _, x := range s.series {
			most = max(most, m.of(x))
		}
		line(`<text x="%d" y="%d" font-weight="bold">%s</text>`, left, y-6, m.name)
		line(`<text x="%d" y="%d" text-anchor="end">%d</text>`, left-6, y+10, most)
		line(`<text x="%d" y="%d" text-anchor="end">0</text>`, left-6, y+height)
		line(`<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#999"/>`, left, y, width, height)
		for i, name := range names {
			fmt.Fprintf(&svg, `<polyline fill="none" stroke="%s" points="`, colors[i%len(colors)])
			last := -1
			for _, x := range of[name] {
				at := int(width * x.At.Seconds() / s.length.Seconds())
				if at/6 == last {
					continue // the eye sees no more
				}
				last = at / 6
				fmt.Fprintf(&svg, "%d,%d ", left+at, y+height-height*m.of(x)/most)
			}
			line(`"/>`)
		}
		line(`<text x="%d" y="%d" text-anchor="end">%v</text>`, left+width, y+height+14, s.length)
		y += height + 50
	}
	for i, name := range names {
		line(`<text x="%d" y="%d" fill="%s">%s</text>`, left, y+18*i, colors[i%len(colors)], name)
	}
	return svg.String() + "</svg>\n"
}
