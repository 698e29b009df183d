//! Ghostscript, which makes a PDF of generated pages of PostScript: words and coloured arcs, each
//! an object of the interpreter's or of the writer's.

use super::{Place, Workload};
use crate::process::{self, Usage};
use crate::results::Scale;

pub const PDF: Workload = Workload { name: "ghostscript", title, run };

fn pages(scale: Scale) -> u32 {
    scale.pick(1, 40, 200)
}

fn title(scale: Scale) -> String {
    format!("ghostscript: {} pages of PostScript to PDF", pages(scale))
}

fn run(place: &Place) -> Result<Usage, String> {
    place.write("pages.ps", &text(pages(place.scale)))?;
    let mut writer = place.measured("gs", "ghostscript")?;
    writer.args(["-q", "-dNOPAUSE", "-dBATCH", "-dSAFER", "-sDEVICE=pdfwrite", "-sOutputFile=pages.pdf"]);
    writer.arg("pages.ps");
    process::run_watched(writer)
}

fn text(pages: u32) -> String {
    format!(
        "%!PS
/Times-Roman findfont 9 scalefont setfont
1 1 {pages} {{ /page exch def
  0 1 59 {{ /line exch def
    50 780 line 12 mul sub moveto
    0 1 11 {{ /word exch def
      page 7919 mul line 104729 mul add word 1299709 mul add 1000003 mod 10 string cvs show ( ) show
    }} for
  }} for
  0 1 200 {{ /k exch def
    newpath 300 400 k k page mul 360 mod k 120 add arc
    k 255 div 1 1 sethsbcolor 0.2 setlinewidth stroke
  }} for
  showpage
}} for
"
    )
}
