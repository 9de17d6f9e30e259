"""Sentences written for the tests, in nine languages, and a vocabulary trained on them."""

from __future__ import annotations

from pathlib import Path

from tests import vocabularies

SENTENCES = {
    "en": (
        "The ferry left at 7:45, but nobody was on board.\n"
        "“Which of the two keys is mine?” she asked — and took both.\n"
        "In 2010, 19 of 1,250 letters came back unopened.\n"
        "The baker's oven isn't hot enough for bread, so he bakes biscuits."
    ),
    "de": (
        "Der Schlüssel hängt größtenteils unbenutzt über der Tür.\n"
        "Übermorgen fährt um 6 Uhr 30 kein Zug nach Süden.\n"
        "Die Straße war naß, das Gemüse trocken und der Käse weiß.\n"
        "„Wer hat meinen Regenschirm gesehen?“, rief er."
    ),
    "fr": (
        "L'été dernier, la forêt près du château a brûlé.\n"
        "Où as-tu rangé les œufs, les pâtes et le café ?\n"
        "« Ça suffit », répéta-t-elle à la fenêtre.\n"
        "Le garçon reçut trois lettres, dont une seule était signée."
    ),
    "ru": (
        "Старый мост через реку закрыт до весны.\n"
        "Она купила 3 кг яблок и ещё одну книгу.\n"
        "«Когда вернётся поезд?» — спросил мальчик.\n"
        "В этом доме живут только кошки, птицы и один сторож."
    ),
    "zh": (
        "今天早上河边的雾很大，看不见对岸。\n"
        "他把三本书和一把伞忘在车站了。\n"
        "“你什么时候回来？”母亲在门口问道。\n"
        "这座小城的夏天又长又热，冬天却很少下雪。"
    ),
    "ko": (
        "아침마다 우리 고양이는 창문 옆에서 잠을 잔다.\n"
        "기차는 일곱 시에 떠났지만 아무도 타지 않았다.\n"
        "“내 우산을 본 사람이 있어요?” 그가 물었다.\n"
        "오래된 다리는 내년 봄까지 건널 수 없다."
    ),
    "ar": (
        "القطار القديم لا يصل قبل الساعة السابعة.\n"
        "اشترت أختي ثلاثة كتب ومظلة جديدة.\n"
        "سأل الولد أمه: متى يعود أبي من السوق؟\n"
        "الجسر فوق النهر مغلق حتى نهاية الشتاء."
    ),
    "th": (
        "เช้านี้หมอกหนามากจนมองไม่เห็นแม่น้ำ\n"
        "แมวของเรานอนอยู่ข้างหน้าต่างทุกวัน\n"
        "เขาลืมร่มและหนังสือสามเล่มไว้ที่สถานี\n"
        "รถไฟออกเวลาเจ็ดโมงแต่ไม่มีใครขึ้น"
    ),
    "vi": (
        "Sáng nay sương mù dày đến nỗi không thấy bờ bên kia.\n"
        "Cô ấy mua ba quyển sách và một chiếc ô mới.\n"
        "“Khi nào tàu trở lại?” cậu bé hỏi mẹ.\n"
        "Cây cầu cũ bị đóng cửa cho đến mùa xuân năm sau."
    ),
}


def lines() -> list[str]:
    """Returns all sentences, each a line."""
    return [line for text in SENTENCES.values() for line in text.split("\n")]


def train_vocabulary(directory: Path, vocab_size: int = 620) -> Path:
    """Trains a SentencePiece model with ALBERT's control pieces; returns its path.

    A few of its pieces end in a digit and a comma, as some of the published vocabulary do.
    """
    from tests.conftest import make_text

    text = [line.lower() for line in lines() * 3] + make_text(20).splitlines()
    text += ["in 2010, 19, 1,9 10, and 11, or 3, " * 9]
    return vocabularies.train(
        directory / "sentences",
        text,
        vocab_size,
        character_coverage=1.0,
        split_by_number=False,
        pad_piece="<pad>",
        unk_piece="<unk>",
    )
