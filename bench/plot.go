package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plotted describes one plot.
type plotted struct {
	File, Title, unit string
	figure            string // the figure to plot by class, or "" for hand-overs by waiters
	scale             float64
}

var plottedAll = []plotted{
	{File: "cycle.svg", Title: "Uncontended lock and unlock, p50", unit: "microseconds", figure: cycleP50, scale: 1e6},
	{File: "throughput.svg", Title: "Cycles per second, 64 goroutines on as many names", unit: "cycles/s", figure: throughput, scale: 1},
	{File: "handover.svg", Title: "From unlock to the next holder, p50, one server, files without fsync", unit: "milliseconds", scale: 1e3},
}

// plottedSides are the sides that are measured in all steps.
var plottedSides = slices.DeleteFunc(slices.Clone(sides), func(s Side) bool { return s.Only != nil })

// palette contains colors that color-blind people can tell apart.
var palette = []color.RGBA{
	{0x55, 0x55, 0x55, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x80, 0x80, 0x00, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x72, 0xb2, 0xff},
	{0x56, 0xb4, 0xe9, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
}

var shapes = []draw.GlyphDrawer{
	draw.CrossGlyph{}, draw.CircleGlyph{}, draw.PlusGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{},
	draw.BoxGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{},
}

// plots draws the plots that have at least one point, and returns them.
func (r *Result) plots(dir string) (drawn []plotted, err error) {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	font.DefaultCache.Add(liberation.Collection())
	for _, what := range plottedAll {
		p, err := r.plot(what)
		if err == nil && p != nil {
			drawn = append(drawn, what)
			err = save(p, filepath.Join(dir, what.File))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what.File, err)
		}
	}
	return drawn, nil
}

// save writes a plot with its legend next to the data rather than over it.
func save(p *plot.Plot, file string) error {
	const width, beside = 28 * vg.Centimeter, 9 * vg.Centimeter
	c := vgsvg.New(width, 11*vg.Centimeter)
	page := draw.New(c)
	page.SetColor(color.White)
	page.Fill(page.Rectangle.Path())
	legend := p.Legend
	p.Legend = plot.NewLegend()
	p.Draw(draw.Crop(page, 0, -beside, 0, 0))
	legend.Top, legend.Left, legend.YOffs, legend.Padding = true, true, -vg.Centimeter, vg.Points(3)
	legend.Draw(draw.Crop(page, width-beside+vg.Points(6), 0, 0, 0))
	var svg bytes.Buffer
	if _, err := c.WriteTo(&svg); err != nil {
		return err
	}
	// Few readers have the font, but most have one with the same metrics.
	family := "font-family:" + string(plot.DefaultFont.Typeface) + " " + string(plot.DefaultFont.Variant)
	text := bytes.ReplaceAll(svg.Bytes(), []byte(family), []byte(family+",Arial,Helvetica,sans-serif"))
	return os.WriteFile(file, text, 0o644)
}

// plot returns the plot of a figure, or nil if nothing was measured.
func (r *Result) plot(what plotted) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = what.Title
	p.Title.Padding = vg.Points(8)
	p.BackgroundColor = color.White
	p.Y.Label.Text = what.unit
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: -1}
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	p.Add(grid)
	any := false
	for i, side := range plottedSides {
		var points plotter.XYs
		if what.figure == "" {
			points = r.handOvers(side.Name, what.scale)
		} else {
			points = r.byClass(i, what)
		}
		if len(points) == 0 {
			continue
		}
		any = true
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, marks.Color, marks.Shape, marks.Radius = palette[i], palette[i], shapes[i], vg.Points(4)
		if what.figure == "" {
			p.Add(line, marks)
			p.Legend.Add(side.Name, line, marks)
		} else {
			p.Add(marks) // no line connects the classes
			p.Legend.Add(side.Name, marks)
		}
	}
	if !any {
		return nil, nil
	}
	if what.figure == "" {
		p.X.Label.Text = "waiters"
		p.X.Scale = plot.LogScale{}
		p.X.Tick.Marker = plot.ConstantTicks(ticks(crowd))
	} else {
		var titles []string
		for _, c := range r.Classes {
			titles = append(titles, c.Name)
		}
		p.NominalX(titles...)
		p.X.Min, p.X.Max = -0.5, float64(len(titles))+0.3
	}
	p.Y.Min = math.Pow(10, math.Floor(math.Log10(p.Y.Min))) // only whole decades get labels
	p.Y.Max = math.Pow(10, math.Ceil(math.Log10(p.Y.Max)))
	return p, nil
}

func ticks(values []int) []plot.Tick {
	var all []plot.Tick
	for _, v := range values {
		all = append(all, plot.Tick{Value: float64(v), Label: strconv.Itoa(v)})
	}
	return all
}

// side returns a side's results in a class, which are empty if it has none.
func (c *ClassResult) side(name string) *SideResult {
	for _, s := range c.Sides {
		if s.Name == name {
			return s
		}
	}
	return &SideResult{}
}

// byClass returns a side's points, one for each class. They are offset so that the sides'
// points appear next to each other.
func (r *Result) byClass(i int, what plotted) plotter.XYs {
	var points plotter.XYs
	for x, c := range r.Classes {
		if y := c.side(plottedSides[i].Name).median(what.figure); y > 0 {
			points = append(points, plotter.XY{X: float64(x) + 0.09*(float64(i)-float64(len(plottedSides)-1)/2), Y: y * what.scale})
		}
	}
	return points
}

// handOvers returns a side's points in the file class, one for each number of waiters.
func (r *Result) handOvers(side string, scale float64) plotter.XYs {
	var points plotter.XYs
	for _, c := range r.Classes {
		if c.Name != "file" {
			continue
		}
		for _, n := range crowd {
			if y := c.side(side).median(handOverP50(n)); y > 0 {
				points = append(points, plotter.XY{X: float64(n), Y: y * scale})
			}
		}
	}
	return points
}
